// What the pointer does on the canvas.

import { imagePath, pixels } from "./api.js";
import { paintFill, paintLine, paintMask, paintPolygon, Stroke, VOID } from "./paint.js";
import { activeClass, history, saving, store } from "./store.js";

export class Tools {
  constructor(view, page) {
    this.view = view;
    this.page = page; // { say, need, painted }
    this.tool = "region";
    this.size = 20;
    this.stroke = this.last = this.drag = this.hover = null;
    this.corners = [];
    this.space = false;
    view.marks = (context) => this.#marks(context);
    const { canvas } = view;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.#up(event));
    canvas.addEventListener("pointerleave", () => { this.hover = null; view.redraw(); });
    canvas.addEventListener("dblclick", () => this.closePolygon());
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      view.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
  }

  choose(tool) {
    this.corners = [];
    this.tool = tool;
    this.view.redraw();
  }

  // Radius of the brush in pixels of the image: the slider grows faster at its end.
  get radius() {
    const side = this.view.image ? Math.max(this.view.image.width, this.view.image.height) : 100;
    return Math.max(0.5, (this.size / 100) ** 2 * side * 0.15);
  }

  // The value that is painted, or null if a class must be chosen first.
  get value() {
    if (this.tool === "eraser") return 0;
    if (this.tool === "void") return VOID;
    const chosen = activeClass();
    return chosen ? chosen.label : null;
  }

  #down(event) {
    const { view } = this, point = view.point(event);
    if (!view.image) return;
    view.canvas.focus();
    view.canvas.setPointerCapture(event.pointerId);
    if (event.button === 1 || this.space || this.tool === "pan") {
      this.drag = { kind: "pan", x: event.clientX, y: event.clientY };
      return;
    }
    if (event.button !== 0) return;
    if (this.value === null) {
      this.page.need();
      return;
    }
    if (this.tool === "region") {
      this.drag = { kind: "region", from: point, to: point, away: event.shiftKey };
    } else if (this.tool === "polygon") {
      this.corners.push(point);
      view.redraw();
    } else if (this.tool === "fill") {
      if (view.isInside(point)) this.#paint((stroke) => paintFill(stroke, point, this.value));
    } else {
      this.stroke = new Stroke(view.labels);
      this.last = point;
      paintLine(this.stroke, point, point, this.radius, this.value);
      view.redraw();
    }
  }

  #move(event) {
    const { view } = this, point = view.point(event);
    this.hover = point;
    if (this.drag?.kind === "pan") {
      view.move(event.clientX - this.drag.x, event.clientY - this.drag.y);
      Object.assign(this.drag, { x: event.clientX, y: event.clientY });
    } else if (this.drag) {
      this.drag.to = point;
    } else if (this.stroke) {
      paintLine(this.stroke, this.last, point, this.radius, this.value);
      this.last = point;
    }
    view.redraw();
  }

  #up(event) {
    if (this.stroke) {
      this.#keep(this.stroke);
      this.stroke = null;
    }
    const drag = this.drag;
    this.drag = null;
    if (drag?.kind === "region" && event.type === "pointerup") this.#region(drag);
    this.view.redraw();
  }

  async #region({ from, to, away }) {
    const { view } = this, { width, height } = view.image, id = store.current, layer = view.labels;
    const clamp = (value, most) => Math.max(0, Math.min(most, Math.round(value)));
    const isBox = Math.hypot(to.x - from.x, to.y - from.y) * view.scale > 8;
    const value = away ? 0 : this.value;
    let asked;
    if (isBox) {
      const box = [Math.min(from.x, to.x), Math.min(from.y, to.y), Math.max(from.x, to.x), Math.max(from.y, to.y)];
      asked = { box: box.map((one, i) => clamp(one, i % 2 ? height : width)) };
      if (asked.box[2] - asked.box[0] < 2 || asked.box[3] - asked.box[1] < 2) return;
    } else {
      if (!view.isInside(from)) return;
      asked = { x: Math.floor(from.x), y: Math.floor(from.y) };
    }
    this.page.busy(true);
    try {
      while (!saving.idle && !saving.failed) await new Promise((go) => setTimeout(go, 20)); // the answer depends on what is painted
      const mask = await pixels("POST", `${imagePath(id)}/region`, { ...asked, name: activeClass().name, away });
      if (store.current !== id || view.labels !== layer) return;
      if (!mask.width) this.page.say(away ? "Nothing is painted there." : "That is painted already; with Shift a click takes it away.");
      else this.#paint((stroke) => paintMask(stroke, mask, value));
    } catch (error) {
      this.page.fail(error);
    } finally {
      this.page.busy(false);
    }
  }

  closePolygon() {
    const corners = this.corners;
    this.corners = [];
    if (corners.length >= 3) this.#paint((stroke) => paintPolygon(stroke, corners, this.value));
    this.view.redraw();
  }

  cancel() {
    this.corners = [];
    this.drag = null;
    this.view.redraw();
  }

  // Makes what the model says of the active class the label of it.
  takeOver() {
    const { view } = this, chosen = activeClass();
    if (!view.model || chosen?.value == null) return;
    this.#paint((stroke) => {
      const { data } = stroke.layer;
      for (let at = 0; at < data.length; at++) {
        if (view.model.data[at] === chosen.value) data[at] = chosen.label;
        else if (data[at] === chosen.label) data[at] = 0;
      }
      stroke.touch(0, 0, stroke.layer.width, stroke.layer.height);
    });
  }

  undo() {
    this.#again("undo", "redo", "before");
  }

  redo() {
    this.#again("redo", "undo", "after");
  }

  #again(from, to, which) {
    const lists = history(), patch = lists[from].pop();
    if (!patch) return;
    lists[to].push(patch);
    this.view.labels.apply(patch, which);
    saving.add(store.current, this.view.labels, patch, which);
    this.view.redraw();
    this.page.painted();
  }

  #paint(work) {
    const stroke = new Stroke(this.view.labels);
    work(stroke);
    this.#keep(stroke);
    this.view.redraw();
  }

  #keep(stroke) {
    const patch = stroke.end();
    if (!patch) return;
    const lists = history();
    lists.undo.push(patch);
    if (lists.undo.length > 200) lists.undo.shift();
    lists.redo = [];
    saving.add(store.current, stroke.layer, patch, "after");
    this.page.painted();
  }

  #marks(context) {
    const { view } = this;
    const line = (colour, width, draw) => {
      context.beginPath();
      draw();
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke();
    };
    const twice = (draw) => {
      line("#000a", 3, draw);
      line("#fff", 1.25, draw);
    };
    if (this.hover && ["brush", "eraser", "void"].includes(this.tool) && !this.space) {
      const at = view.place(this.hover);
      twice(() => context.arc(at.x, at.y, Math.max(2, this.radius * view.scale), 0, 7));
    }
    if (this.drag?.kind === "region") {
      const a = view.place(this.drag.from), b = view.place(this.drag.to);
      twice(() => context.rect(a.x, a.y, b.x - a.x, b.y - a.y));
    }
    if (this.corners.length) {
      const points = [...this.corners, ...(this.hover ? [this.hover] : [])].map((one) => view.place(one));
      twice(() => points.forEach((one, i) => (i ? context.lineTo(one.x, one.y) : context.moveTo(one.x, one.y))));
      for (const one of points.slice(0, this.corners.length)) {
        context.fillStyle = "#fff";
        context.fillRect(one.x - 3, one.y - 3, 6, 6);
      }
    }
  }
}
