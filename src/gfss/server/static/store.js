// What the page knows: images, classes, the image that is open, and the strokes on their way to the server.

import { call, get, imagePath, pixels } from "./api.js";
import { Layer } from "./paint.js";

export const store = {
  images: [],
  classes: [],
  state: null,
  current: null, // id of the open image
  active: null, // name of the class that is painted
  hidden: new Set(), // names of classes that are not shown
  histories: new Map(), // id -> { undo: [patch], redo: [patch] }
};

export const image = (id = store.current) => store.images.find((one) => one.id === id);
export const classNamed = (name) => store.classes.find((one) => one.name === name);
export const activeClass = () => classNamed(store.active);
export const ownClasses = () => store.classes.filter((one) => one.label !== null);

export function history(id = store.current) {
  if (!store.histories.has(id)) store.histories.set(id, { undo: [], redo: [] });
  return store.histories.get(id);
}

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// Colours by value: of what the model says ("value"), or of what is painted ("label").
export function colours(key) {
  const shown = store.classes.filter((one) => one[key] !== null && !store.hidden.has(one.name));
  const table = new Map(shown.map((one) => [one[key], rgb(one.colour)]));
  if (key === "label") table.set(255, [128, 128, 128]);
  return table;
}

export async function loadLists() {
  const [images, classes] = await Promise.all([get("/api/images"), get("/api/classes")]);
  store.images = images.images;
  store.classes = classes.classes;
  const own = ownClasses();
  if (!own.some((one) => one.name === store.active)) store.active = own.length ? own[0].name : null;
}

export async function loadLabel(id) {
  const { data, width, height, version } = await pixels("GET", `${imagePath(id)}/label?format=raw`);
  const layer = new Layer(width, height, data, true);
  layer.version = version;
  return layer;
}

// Strokes go to the server one after another, in order; what could not be sent is sent again.
export const saving = {
  queue: [],
  busy: false,
  failed: null,
  changed: () => {},

  add(id, layer, patch, which) {
    this.queue.push({ id, layer, patch, values: patch[which] });
    this.changed();
    if (!this.busy) this.send();
  },

  async send() {
    this.busy = true;
    while (this.queue.length) {
      const { id, layer, patch, values } = this.queue[0];
      const { left, top, width, height } = patch;
      const where = new URLSearchParams({ left, top, width, height });
      try {
        const answer = await (await call("POST", `${imagePath(id)}/strokes?${where}`, values)).json();
        layer.stale = layer.stale || answer.version !== layer.version + 1; // another tab painted here too
        layer.version = answer.version;
        this.failed = null;
      } catch (error) {
        this.failed = error.message;
        if (!error.status || error.status >= 500) {
          this.changed();
          await new Promise((go) => setTimeout(go, 1500));
          continue;
        }
        layer.stale = true; // refused for good: show what the server has
      }
      this.queue.shift();
      this.changed();
    }
    this.busy = false;
    this.changed();
  },

  get idle() {
    return !this.busy && !this.queue.length;
  },
};
