// The lists beside the canvas: images on the left; classes and the report on the right.

import { imagePath } from "./api.js";
import { activeClass, classNamed, image, ownClasses, store } from "./store.js";

export const $ = (selector) => document.querySelector(selector);

// An element with properties and children.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const EYE = "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z";

function icon(path) {
  const space = "http://www.w3.org/2000/svg", made = document.createElementNS(space, "svg"), line = document.createElementNS(space, "path");
  made.setAttribute("viewBox", "0 0 24 24");
  line.setAttribute("d", path);
  made.append(line);
  return made;
}

function dot(colour, not = false) {
  const made = element("i", { className: not ? "dot not" : "dot" });
  made.style.background = colour;
  made.style.color = colour;
  return made;
}

// Images, in their order; elements stay where they are, so that scrolling is not lost.
export function showGallery(open, suggested) {
  const holder = $("#thumbnails"), known = new Map([...holder.children].map((one) => [one.dataset.id, one]));
  $("#empty").hidden = store.images.length > 0;
  const labelled = store.images.filter((one) => Object.keys(one.painted).length).length;
  $("#count").textContent = `${store.images.length} images, ${labelled} painted`;
  for (const one of store.images) {
    let button = known.get(one.id);
    known.delete(one.id);
    if (!button) {
      const picture = element("img", { alt: "", loading: "lazy", src: thumbnail(one) });
      button = element("button", { className: "thumbnail", title: one.file, onclick: () => open(one.id) }, picture, element("span", { className: "caption" }));
      button.dataset.id = one.id;
      button.dataset.stamp = one.stamp;
      holder.append(button);
    }
    button.setAttribute("aria-current", one.id === store.current);
    button.classList.toggle("suggested", one.id === suggested);
    const marks = [...Object.keys(one.painted).map((name) => [name, false]), ...one.without.map((name) => [name, true])];
    const dots = marks.filter(([name]) => classNamed(name)).map(([name, not]) => {
      const made = dot(classNamed(name).colour, not);
      made.title = not ? `does not show ${name}` : `${name} is painted`;
      return made;
    });
    button.lastChild.replaceChildren(element("span", {}, one.id), ...dots);
  }
  for (const gone of known.values()) gone.remove();
}

const thumbnail = (one, version = 0) => `${imagePath(one.id)}/thumbnail?stamp=${one.stamp}` + (version ? `&overlay=true&model=${version}` : "");

// What the model finds, in every small image, one after another so that the open image does not wait for them.
let round = 0;
export async function overlayGallery(version) {
  const mine = ++round;
  for (const button of [...$("#thumbnails").children]) {
    const one = image(button.dataset.id);
    if (!one) continue;
    const picture = new Image();
    picture.src = thumbnail(one, version);
    await picture.decode().catch(() => {});
    if (mine !== round) return;
    button.firstChild.src = picture.src;
  }
}

export function showClasses(actions) {
  const own = ownClasses();
  $("#own").replaceChildren(...own.map((one, number) => ownClass(one, number, actions)));
  const others = store.classes.filter((one) => one.label === null);
  $("#known-count").textContent = `(${others.length})`;
  $("#base").replaceChildren(...others.map((one) => {
    const words = element("span", { className: "words" }, one.name + (one.kind === "taught" ? " (taught elsewhere)" : ""));
    return element("li", { className: "class" }, dot(one.colour), words, eye(one, actions));
  }));
}

function eye(one, actions) {
  const shown = !store.hidden.has(one.name);
  const button = element("button", { title: shown ? "Hide" : "Show", "aria-label": `Show ${one.name}`, "aria-pressed": shown }, icon(EYE));
  button.onclick = (event) => {
    event.stopPropagation();
    actions.toggle(one.name);
  };
  return button;
}

function ownClass(one, number, actions) {
  const images = `${one.painted} image${one.painted === 1 ? "" : "s"} painted`;
  const none = one.without ? `, ${one.without} without` : "";
  const taught = one.taught_from ? (one.changed ? " · new labels" : " · taught") : "";
  const words = element("span", { className: "words" }, element("b", {}, one.name), element("span", { className: "quiet" }, images + none + taught));
  const entry = (text, work) => element("button", { onclick: () => work(one.name) }, text);
  const sheet = element("div", { className: "sheet" }, entry("Rename …", actions.rename));
  if (one.taught_from) sheet.append(entry("Forget (labels stay)", actions.forget));
  sheet.append(entry("Remove with labels …", actions.remove));
  const more = element("details", { className: "more", onclick: (event) => event.stopPropagation() }, element("summary", { "aria-label": `More about ${one.name}` }, "⋯"), sheet);
  const item = element("li", { className: "class", tabIndex: 0, title: number < 9 ? `Paint ${one.name} (${number + 1})` : "" }, dot(one.colour), words, eye(one, actions), more);
  item.setAttribute("aria-current", one.name === store.active);
  item.dataset.name = one.name;
  item.onclick = () => actions.choose(one.name);
  item.onkeydown = (event) => event.key === "Enter" && event.target === item && actions.choose(one.name);
  return item;
}

export function showTeach(job) {
  const changed = ownClasses().filter((one) => one.changed), button = $("#teach");
  const running = job && job.kind === "teach";
  button.disabled = !changed.length || Boolean(running);
  button.textContent = running ? "Teaching …" : changed.length ? `Teach ${changed.map((one) => one.name).join(", ")}` : "Teach";
  button.title = changed.length ? "Teach from everything that is painted (T)" : "Paint an object of a class first";
  $("#progress").hidden = !job;
  if (job) {
    $("#progress .bar div").style.width = `${100 * job.progress}%`;
    $("#progress p").textContent = job.step || job.title;
  }
}

export function showImageButtons() {
  const one = image(), chosen = activeClass(), not = $("#without");
  $("#name").textContent = one ? one.id : "";
  $("#name").title = one ? `${one.file}, ${one.width} x ${one.height}` : "";
  not.disabled = !one || !chosen;
  not.textContent = chosen ? `No ${chosen.name} here` : "Not in this image";
  not.setAttribute("aria-pressed", Boolean(one && chosen && one.without.includes(chosen.name)));
  $("#take").disabled = !one || chosen?.value == null;
  const slider = $("#balance");
  slider.hidden = chosen?.balance == null;
  if (!slider.hidden && document.activeElement !== $("#balance-value")) {
    $("#balance-class").textContent = chosen.name;
    $("#balance-value").value = chosen.balance;
  }
}

export function showReport(report, estimates, undoable) {
  $("#report").hidden = !report && !undoable;
  $("#undo-lesson").hidden = !undoable;
  const words = report ? report.words.map(({ text, kind }) => element("p", { className: kind }, text)) : [];
  for (const [name, one] of Object.entries(estimates || {})) words.unshift(element("p", {}, element("b", {}, name), `: ${one.words}`));
  $("#words").replaceChildren(...words);
  const bars = [];
  for (const section of report ? report.sections : []) {
    bars.push(element("p", { className: "quiet" }, `IoU on ${section.title} (${section.images})`));
    const rows = section.rows.filter((row) => row.name !== "background" && (row.judged || !row.known)).sort((a, b) => Number(a.known) - Number(b.known));
    for (const row of rows) bars.push(pair(row));
  }
  if (bars.length) {
    bars.push(element("div", { className: "legend" }, element("span", {}, element("i", { className: "before" }), "before"), element("span", {}, element("i"), "after")));
  }
  $("#bars").replaceChildren(...bars);
}

function pair(row) {
  const bar = (value, kind) => {
    const inner = element("div");
    inner.style.width = `${value ?? 0}%`;
    return element("div", { className: `bar ${kind}` }, inner);
  };
  const figure = (value) => element("span", { className: "figure" }, value == null ? "–" : value.toFixed(1));
  const label = element("span", { className: "label", title: row.name }, row.name + (row.known ? "" : " (new)"));
  const before = row.known ? row.before : null;
  return element("div", { className: "pair" }, label, bar(before, "before"), figure(before), bar(row.after, "after"), figure(row.after));
}
