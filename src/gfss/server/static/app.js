// The page: opens images, passes clicks on, and keeps what it shows in step with the server.

import { call, classPath, finished, get, imagePath, pixels, post } from "./api.js";
import { Layer } from "./paint.js";
import { $, overlayGallery, showClasses, showGallery, showImageButtons, showReport, showTeach } from "./panel.js";
import { activeClass, colours, history, image, loadLabel, loadLists, ownClasses, saving, store } from "./store.js";
import { Tools } from "./tools.js";
import { View } from "./view.js";

const view = new View($("#view"));
const page = {
  say: (text) => notice(text),
  fail: (error) => notice(error.message, true),
  busy: (yes) => document.body.classList.toggle("busy", yes),
  need: () => {
    hint("First name what you want to teach, on the right.");
    $("#new-name").focus();
  },
  painted: () => {
    hint("");
    showUndo();
  },
};
const tools = new Tools(view, page);
let suggested = null, seen = { revision: -1, version: -1, session: null }, report = null, estimates = {};

// messages

function notice(text, bad = false, action = null) {
  const box = $("#notice"), button = $("#notice-action");
  box.hidden = !text;
  box.classList.toggle("bad", bad);
  box.querySelector("span").textContent = text ? text[0].toUpperCase() + text.slice(1) : "";
  button.hidden = !action;
  if (action) {
    button.textContent = action.text;
    button.onclick = action.work;
  }
}

function hint(text) {
  $("#hint").textContent = text;
}

// Runs something that the user asked for; an error becomes a notice.
async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    page.fail(error);
    return null;
  }
}

saving.changed = () => {
  const box = $("#saved");
  box.className = saving.failed ? "failed" : saving.idle ? "quiet" : "waiting";
  box.textContent = saving.failed ? `not saved: ${saving.failed}` : saving.idle ? "saved" : "saving …";
  if (saving.idle && view.labels?.stale) reloadLabel();
};

// the open image

async function open(id) {
  const one = image(id);
  if (!one) return;
  tools.cancel();
  store.current = id;
  localStorage.setItem("gfss-image", id);
  refresh();
  await attempt(async () => {
    const picture = new Image();
    picture.src = `${imagePath(id)}/file?stamp=${one.stamp}`;
    const [labels] = await Promise.all([loadLabel(id), picture.decode()]);
    if (store.current !== id) return;
    labels.colour(colours("label"));
    view.show(picture, labels);
    showUndo();
    greet();
    await predict();
  });
}

async function reloadLabel() {
  const id = store.current;
  const labels = await attempt(() => loadLabel(id));
  if (!labels || store.current !== id || !saving.idle) return;
  labels.colour(colours("label"));
  view.labels = labels;
  view.redraw();
}

// What the model says of the open image, with another balance if given.
let asked = 0;
async function predict(balance = null) {
  const id = store.current, mine = ++asked;
  if (!id) return;
  const query = balance === null ? "" : `&balance=${balance}`;
  const answer = await pixels("GET", `${imagePath(id)}/segment?format=raw${query}`);
  if (mine !== asked || store.current !== id) return;
  const layer = new Layer(answer.width, answer.height, answer.data);
  layer.colour(colours("value"));
  view.model = layer;
  view.redraw();
  document.body.dataset.predicted = `${id} ${answer.model}`;
}

function step(by) {
  const at = store.images.findIndex((one) => one.id === store.current), next = store.images[at + by];
  if (next) {
    open(next.id);
    $(`.thumbnail[data-id="${CSS.escape(next.id)}"]`)?.scrollIntoView({ block: "nearest" });
  }
}

function greet() {
  if (!ownClasses().length) hint("Name what you want to teach, on the right; then click an object or paint it.");
  else if (!ownClasses().some((one) => one.painted)) hint(`Click a ${store.active}, draw a box around it, or paint it with the brush.`);
  else hint("");
}

function showUndo() {
  const lists = history();
  $("#undo").disabled = !lists.undo.length;
  $("#redo").disabled = !lists.redo.length;
}

function recolour() {
  view.labels?.colour(colours("label"));
  view.model?.colour(colours("value"));
  view.redraw();
}

// classes

const actions = {
  choose(name) {
    store.active = name;
    refresh();
  },
  toggle(name) {
    if (!store.hidden.delete(name)) store.hidden.add(name);
    recolour();
    refresh();
  },
  rename: (name) => attempt(async () => {
    const wanted = prompt(`New name for ${name}:`, name)?.trim();
    if (!wanted || wanted === name) return;
    await post(`${classPath(name)}/rename`, { name: wanted });
    if (store.active === name) store.active = wanted;
    await poll();
  }),
  forget: (name) => attempt(async () => {
    await post(`${classPath(name)}/forget`);
    await poll();
  }),
  remove: (name) => attempt(async () => {
    if (!confirm(`Remove ${name} and everything painted as ${name}?`)) return;
    await call("DELETE", classPath(name));
    store.histories.clear();
    await poll();
    await reloadLabel();
  }),
};

async function teach() {
  if ($("#teach").disabled) return;
  await attempt(async () => {
    while (!saving.idle) await new Promise((go) => setTimeout(go, 50));
    const job = await post("/api/teach", {});
    showTeach(job);
    const result = await finished(job, showTeach);
    report = result.report;
    estimates = result.estimates;
    $("#show-model").checked = view.showModel = true;
    notice("");
    await poll();
  });
  refresh();
}

async function suggest() {
  await attempt(async () => {
    const result = await finished(await post("/api/suggest"), showTeach);
    suggested = result.images[0].id;
    await open(suggested);
    $(".thumbnail.suggested")?.scrollIntoView({ block: "center" });
    hint("A label in this image would help most.");
  });
  refresh();
}

async function exportFile(kind) {
  $("#export").open = false;
  await attempt(async () => {
    notice("Exporting …");
    const result = await finished(await post(`/api/exports/${kind}`), showTeach);
    notice("");
    const link = document.createElement("a");
    link.href = `/api/exports/${encodeURIComponent(result.file)}`;
    link.download = result.file;
    link.click();
  });
}

async function upload(files) {
  for (const file of files) {
    await attempt(() => call("POST", `/api/images?name=${encodeURIComponent(file.name)}`, file));
  }
  await poll();
}

// in step with the server

function refresh() {
  showGallery(open, suggested);
  showClasses(actions);
  showTeach(store.state?.job);
  showImageButtons();
  const state = store.state;
  if (!state) return;
  const taught = store.classes.filter((one) => one.kind === "taught").length;
  $("#folder").textContent = state.folder;
  $("#model").textContent = state.model.name + (taught ? ` + ${taught} taught` : "");
  showReport(report, estimates, state.model.undoable);
}

let offline = false, changed = false;
async function poll() {
  let state;
  try {
    state = await get("/api/state");
  } catch (error) {
    offline = true;
    notice(error.message, true);
    return;
  }
  if (offline) notice("");
  offline = false;
  store.state = state;
  const fresh = state.session !== seen.session, revised = fresh || state.revision !== seen.revision;
  const retaught = fresh || state.model.version !== seen.version;
  seen = { revision: state.revision, version: state.model.version, session: state.session };
  if (state.model.changed_on_disk) {
    changed = true;
    notice("Another program changed the model on disk.", false, { text: "Load it", work: () => attempt(async () => { await post("/api/reload"); notice(""); await poll(); }) });
  } else if (state.problem) notice(state.problem, true);
  else if (changed) {
    changed = false;
    notice("");
  }
  if (revised || retaught) {
    await loadLists();
    recolour();
    const one = image(), labels = view.labels;
    if (!fresh && one && labels && saving.idle && one.version !== labels.version) await reloadLabel();
    if (!one && store.images.length) {
      const last = localStorage.getItem("gfss-image");
      open(image(last) ? last : store.images[0].id);
    } else if (fresh && one) {
      open(one.id);
    } else if (retaught && one) {
      await attempt(predict);
    }
    if (retaught) {
      const known = store.classes.some((one) => one.kind === "taught");
      if (!known) report = null;
      else if (!report || fresh) get("/api/report").then((now) => { report = now; refresh(); }, () => {});
      overlayGallery(known ? state.model.version : 0);
    }
  }
  refresh();
}

async function keepPolling() {
  await attempt(poll);
  setTimeout(keepPolling, store.state?.job ? 400 : 1200);
}

// controls

for (const button of document.querySelectorAll("[data-tool]")) {
  button.onclick = () => {
    tools.choose(button.dataset.tool);
    for (const one of document.querySelectorAll("[data-tool]")) one.setAttribute("aria-pressed", one === button);
    view.canvas.style.cursor = button.dataset.tool === "pan" ? "grab" : "crosshair";
  };
}
const choose = (tool) => $(`[data-tool="${tool}"]`).click();
choose("region");

$("#size").oninput = (event) => { tools.size = Number(event.target.value); view.redraw(); };
$("#opacity").oninput = (event) => { view.opacity = event.target.value / 100; view.redraw(); };
$("#show-model").onchange = (event) => { view.showModel = event.target.checked; view.redraw(); };
$("#show-labels").onchange = (event) => { view.showLabels = event.target.checked; view.redraw(); };
$("#undo").onclick = () => tools.undo();
$("#redo").onclick = () => tools.redo();
$("#larger").onclick = () => view.zoom(1.4);
$("#smaller").onclick = () => view.zoom(1 / 1.4);
$("#whole").onclick = () => view.fit();
$("#previous").onclick = () => step(-1);
$("#next").onclick = () => step(1);
$("#take").onclick = () => tools.takeOver();
$("#teach").onclick = teach;
$("#suggest").onclick = suggest;
$("#notice-close").onclick = () => notice("");
$("#help").onclick = () => $("#shortcuts").showModal();
for (const button of document.querySelectorAll("[data-export]")) button.onclick = () => exportFile(button.dataset.export);

$("#without").onclick = () => attempt(async () => {
  const one = image(), chosen = activeClass();
  if (!one || !chosen) return;
  await post(`${imagePath(one.id)}/without`, { name: chosen.name, without: !one.without.includes(chosen.name) });
  await poll();
});

$("#add").onsubmit = (event) => {
  event.preventDefault();
  const name = $("#new-name").value.trim();
  if (!name) return;
  attempt(async () => {
    await post("/api/classes", { name });
    $("#new-name").value = "";
    store.active = name;
    await poll();
    store.active = name;
    refresh();
    greet();
    view.canvas.focus();
  });
};

$("#undo-lesson").onclick = () => attempt(async () => {
  await post("/api/undo");
  report = null;
  estimates = {};
  await poll();
});

let balancing;
$("#balance-value").oninput = (event) => {
  clearTimeout(balancing);
  balancing = setTimeout(() => attempt(() => predict(Number(event.target.value))), 60);
};
$("#balance-value").onchange = (event) => attempt(async () => {
  clearTimeout(balancing);
  await call("PUT", `${classPath(store.active)}/balance`, { value: Number(event.target.value) });
  event.target.blur();
  await poll();
});

const themes = ["light", "dark"];
const wanted = localStorage.getItem("gfss-theme");
if (themes.includes(wanted)) document.documentElement.dataset.theme = wanted;
$("#theme").onclick = () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("gfss-theme", document.documentElement.dataset.theme);
};

const keys = {
  r: () => choose("region"), b: () => choose("brush"), e: () => choose("eraser"), p: () => choose("polygon"),
  f: () => choose("fill"), v: () => choose("void"), h: () => choose("pan"), t: teach, n: suggest,
  m: () => $("#show-model").click(), l: () => $("#show-labels").click(), x: () => $("#without").click(),
  c: () => tools.takeOver(), "+": () => view.zoom(1.4), "=": () => view.zoom(1.4), "-": () => view.zoom(1 / 1.4),
  0: () => view.fit(), ArrowLeft: () => step(-1), ArrowRight: () => step(1), "?": () => $("#help").click(),
  "[": () => resize(-4), "]": () => resize(4), Enter: () => tools.closePolygon(), Escape: () => tools.cancel(),
};
function resize(by) {
  $("#size").value = Number($("#size").value) + by;
  $("#size").oninput({ target: $("#size") });
}

addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (target.matches("input:not([type=range]):not([type=checkbox])") || $("#shortcuts").open) return;
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "z") {
    event.preventDefault();
    if (event.shiftKey) tools.redo();
    else tools.undo();
  } else if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "y") {
    event.preventDefault();
    tools.redo();
  } else if (event.ctrlKey || event.metaKey || event.altKey) {
    return;
  } else if (key === " " && target === view.canvas) {
    event.preventDefault();
    tools.space = true;
  } else if (/^[1-9]$/.test(key)) {
    const chosen = ownClasses()[Number(key) - 1];
    if (chosen) actions.choose(chosen.name);
  } else if (keys[key] && !(target.matches("input[type=range]") && key.startsWith("Arrow")) && !(key === "Enter" && target.matches("button, summary, li"))) {
    event.preventDefault();
    keys[key]();
  }
});
addEventListener("keyup", (event) => {
  if (event.key === " ") tools.space = false;
});
addEventListener("beforeunload", (event) => {
  if (!saving.idle) event.preventDefault();
});
addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
addEventListener("dragleave", () => document.body.classList.remove("dropping"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  upload(event.dataTransfer.files);
});
addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open], details.more[open]")) if (!menu.contains(event.target)) menu.open = false;
});

window.gfss = { store, view, tools }; // for a look from the browser's console
keepPolling();
