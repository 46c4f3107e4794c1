/** The form of one engine step: up to three setups of a model on hardware, and what they share. */

import { call, query } from "/static/js/api.js";
import { combobox, matches } from "/static/js/combobox.js";
import { button, debounced, el, fill, freshId, shareButton } from "/static/js/parts.js";
import { isUpload, ownModel } from "/static/js/uploads.js";
import { urlState } from "/static/js/url_state.js";
import { dollars, gigabytes, si } from "/static/js/words.js";

const FIRST = { model: "llama3.1-8b", hardware: "h100" };

const MOST = 3;

const SHARED = ["stage", "batch", "context", "weight_dtype", "kv_dtype", "tensor_parallel", "engine"];

/** The letters by which setups are named where there are several. */
export const LETTERS = ["A", "B", "C"];

/**
 * Give life to the form of `_step.html`.
 *
 * @param {{onChange: () => void, kept?: string[]}} page What runs after a change; names of the address that belong to
 *   the page.
 */
export function stepForm({ onChange, kept = [] }) {
  const form = document.getElementById("step");
  const place = document.getElementById("setups");
  const add = document.getElementById("add-setup");
  const models = itemsOf("/models");
  const hardware = itemsOf("/hardware");
  const changed = debounced(() => { state.save(); if (form.checkValidity()) onChange(); }, 120);

  const setups = () => [...place.children].map((node) => ({ model: part(node, "model").value.trim(), hardware: part(node, "hardware").value.trim() }));

  function addSetup({ model, hardware: name }) {
    const node = document.getElementById("setup").content.firstElementChild.cloneNode(true);
    const inputs = { model: part(node, "model"), hardware: part(node, "hardware") };
    inputs.model.value = model;
    inputs.hardware.value = name;
    for (const [which, find] of [["model", findModels], ["hardware", findHardware]]) {
      const input = inputs[which];
      input.id = freshId(which);
      input.previousElementSibling.setAttribute("for", input.id);
      const spot = document.createElement("span");
      input.replaceWith(spot);
      spot.replaceWith(combobox(input, find, (value) => { input.value = value; changed(); }));
      input.addEventListener("change", changed);
      input.addEventListener("input", (event) => event.stopPropagation()); // a half typed name is no question
    }
    inputs.model.closest(".field").after(ownModel((name) => { inputs.model.value = name; changed(); }));
    place.append(node);
    letters();
    return inputs;
  }

  function letters() {
    const several = place.children.length > 1;
    [...place.children].forEach((node, i) => fill(node.querySelector("legend"), several ? `Setup ${LETTERS[i]}` : "Setup",
      i > 0 ? button("×", () => { node.remove(); letters(); changed(); add.focus(); }, { class: "quiet small", "aria-label": `Remove setup ${LETTERS[i]}` }) : null));
    add.hidden = place.children.length >= MOST;
  }

  async function findModels(text) {
    return (await models()).filter((item) => matches(`${item.name} ${item.hf_id ?? ""}`, text)).map((item) => ({
      value: item.name, text: item.name, detail: [item.params ? si(item.params, "").replace(" G", " B") : "", item.weight_dtype].filter(Boolean).join(" · "),
    }));
  }

  async function findHardware(text) {
    const [, name, count] = text.toLowerCase().match(/^([a-z][\w-]*?)?(?:x(\d*))?$/) ?? [];
    const most = (item) => Math.max(...(item.node_sizes ?? [8]));
    return (await hardware()).filter((item) => matches(`${item.name} ${item.vendor ?? ""}`, name ?? text)).flatMap((item) => {
      const sizes = count ? [Number(count)] : text ? [1, 2, 4, 8].filter((n) => n <= most(item)) : [1];
      return sizes.map((n) => ({
        value: `${item.name}x${n}`, text: `${item.name}x${n}`,
        detail: [gigabytes(item.memory_bytes), si(item.memory_bytes_per_s, "B/s"), item.price ? `${dollars(item.price.usd_per_hour * n)}/h` : ""].filter(Boolean).join(" · "),
      }));
    });
  }

  /** The setups as two lists of the address, which belong together by their position. */
  const rows = { models: [], hardware: [] };
  const rebuild = () => {
    const n = Math.min(Math.max(rows.models.length, rows.hardware.length, 1), MOST);
    place.replaceChildren();
    for (let i = 0; i < n; i += 1) {
      addSetup({ model: rows.models[i] ?? rows.models.at(-1) ?? FIRST.model, hardware: rows.hardware[i] ?? rows.hardware.at(-1) ?? FIRST.hardware });
    }
  };
  const isDefault = () => place.children.length === 1 && setups()[0].model === FIRST.model && setups()[0].hardware === FIRST.hardware;
  const lists = {
    model: { read: () => (isDefault() ? [] : setups().map((s) => s.model)), write: (values) => { rows.models = values; } },
    hardware: { read: () => (isDefault() ? [] : setups().map((s) => s.hardware)), write: (values) => { rows.hardware = values; rebuild(); } },
  };
  const state = urlState(form, { lists, kept });

  logSlider("batch");
  logSlider("context");
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); restore(""); state.save(Object.fromEntries(kept.map((name) => [name, ""]))); onChange(); });
  window.addEventListener("popstate", () => { restore(); onChange(); });
  add.addEventListener("click", () => { addSetup(setups().at(-1)).hardware.focus(); changed(); });
  call("/engines").then((found) => choices("engine", found.items.filter((item) => item.supported !== false && item.name).map((item) => item.name))).catch(() => {});
  fill(document.getElementById("share"), shareButton());

  function restore(text) {
    state.restore(text);
    form.dispatchEvent(new Event("restored"));
  }
  restore();
  document.getElementById("precision").open = window.matchMedia("(min-width: 980px)").matches;

  return {
    form,
    state,
    setups,
    /** Return what all setups share, as values of a query. */
    shared: () => Object.fromEntries(SHARED.map((name) => [name, form.elements[name]?.value ?? ""])),
    /** Return the query of the i-th setup. */
    queryOf(i) { return query({ ...setups()[i], ...this.shared() }); },
  };

  /** Offer further values of a select; a value that the address holds stays chosen. */
  function choices(name, values) {
    const control = form.elements[name];
    const known = new Set([...control.options].map((option) => option.value));
    for (const value of values) if (!known.has(value)) control.append(new Option(value, value));
  }

  function logSlider(name) {
    const slider = document.getElementById(`${name}-slider`);
    const number = document.getElementById(name);
    const follow = () => { slider.value = Math.log2(Math.max(Number(number.value), 1)); };
    slider.addEventListener("input", () => {
      const size = 2 ** Number(slider.value);
      const step = 2 ** Math.max(0, Math.floor(Math.log2(size)) - 3);
      number.value = String(Math.max(1, Math.round(size / step) * step));
    });
    number.addEventListener("input", follow);
    form.addEventListener("restored", follow);
  }
}

function part(node, name) {
  return node.querySelector(`[data-part="${name}"]`);
}

/** Return a function that asks for the items of a catalog when they are first needed, after the first answer. */
function itemsOf(path) {
  let items = null;
  return () => {
    items ??= call(path)
      .then((found) => found.items)
      .catch(() => []);
    return items;
  };
}

/** Return the command of `plan analyze` for a setup. */
export function analyzeCommand({ model, hardware }, shared) {
  const options = Object.entries({ model: modelName(model), hw: hardware, ...shared })
    .filter(([name, value]) => value !== "" && !(name === "stage" && value === "decode") && !(name === "engine" && value === "vllm"))
    .map(([name, value]) => `--${name.replaceAll("_", "-")} ${/^[\w.,:/*-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`}`);
  return `plan analyze ${options.join(" ")}`;
}

/** Ask `path` of the API for every setup of a form; return each setup with its title and its document. */
export async function askSetups(page, path, signal) {
  const setups = page.setups();
  const documents = await Promise.all(setups.map((_, i) => call(`${path}?${page.queryOf(i)}`, { signal })));
  return documents.map((document, i) => ({ setup: setups[i], title: setupName(setups[i], i, setups.length), document }));
}

/** Return a name of a setup for titles: its letter where there are several, its model and its hardware. */
export function setupName(setup, i, n) {
  return `${n > 1 ? `${LETTERS[i]}: ` : ""}${modelName(setup.model)} on ${setup.hardware}`;
}

/** Return a model by the name that a reader knows: an upload is the reader's own config.json. */
function modelName(model) {
  return isUpload(model) ? "config.json" : model;
}

/** Return lines of text as a list, for example the notices of a calibration; null without lines. */
export function notes(lines) {
  return lines?.length ? el("ul", { class: "notes" }, lines.map((line) => el("li", {}, line))) : null;
}

