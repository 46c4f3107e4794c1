/** The form of one engine step: up to three setups of a model on hardware, and what they share. */

import { call, query } from "/static/js/api.js";
import { combobox, matches } from "/static/js/combobox.js";
import { formHistory } from "/static/js/form_history.js";
import { button, debounced, el, fill, freshId, shareButton } from "/static/js/parts.js";
import { isUpload, ownModel } from "/static/js/uploads.js";
import { urlState } from "/static/js/url_state.js";
import { dollars, gigabytes, parameters, si } from "/static/js/words.js";

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
  const changed = debounced(() => {
    state.save();
    if (form.checkValidity()) onChange();
  }, 120);
  const rows = setupRows(changed);
  const state = urlState(form, { lists: rows.lists, kept });
  const follow = () => form.dispatchEvent(new Event("restored"));
  const restore = formHistory(form, state, { kept, follow, onChange });

  logSlider(form, "batch");
  logSlider(form, "context");
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  call("/engines")
    .then(({ items }) =>
      offer(
        form.elements.engine,
        items.filter((item) => item.supported).map((item) => item.name),
      ),
    )
    .catch(() => {}); // the form works without the list
  fill(document.getElementById("share"), shareButton());
  restore();
  document.getElementById("precision").open = window.matchMedia("(min-width: 980px)").matches;

  const shared = () => Object.fromEntries(SHARED.map((name) => [name, form.elements[name]?.value ?? ""]));
  return {
    form,
    state,
    setups: rows.setups,
    /** Return what all setups share, as values of a query. */
    shared,
    /** Return the query of the i-th setup. */
    queryOf: (i) => query({ ...rows.setups()[i], ...shared() }),
  };
}

/** Give life to the rows of setups; return them, and what reads and writes them as two lists of the address. */
function setupRows(changed) {
  const place = document.getElementById("setups");
  const add = document.getElementById("add-setup");
  const models = itemsOf("/models");
  const hardware = itemsOf("/hardware");
  const value = (node, name) => part(node, name).value.trim();
  const setups = () =>
    [...place.children].map((node) => ({ model: value(node, "model"), hardware: value(node, "hardware") }));

  function addSetup(setup) {
    const node = document.getElementById("setup").content.firstElementChild.cloneNode(true);
    for (const [name, find] of [
      ["model", findModels(models)],
      ["hardware", findHardware(hardware)],
    ]) {
      const input = part(node, name);
      input.value = setup[name];
      suggest(input, find, changed);
    }
    const model = part(node, "model");
    const take = (name) => {
      model.value = name;
      changed();
    };
    model.closest(".field").after(ownModel(take));
    place.append(node);
    letters();
    return node;
  }

  function letters() {
    const several = place.children.length > 1;
    [...place.children].forEach((node, i) => {
      const remove = () => {
        node.remove();
        letters();
        changed();
        add.focus();
      };
      const look = { class: "quiet small", "aria-label": `Remove setup ${LETTERS[i]}` };
      fill(
        node.querySelector("legend"),
        several ? `Setup ${LETTERS[i]}` : "Setup",
        i > 0 ? button("×", remove, look) : null,
      );
    });
    add.hidden = place.children.length >= MOST;
  }

  add.addEventListener("click", () => {
    part(addSetup(setups().at(-1)), "hardware").focus();
    changed();
  });

  const given = { model: [], hardware: [] }; // the two lists belong together by their positions
  const rebuild = () => {
    const n = Math.min(Math.max(given.model.length, given.hardware.length, 1), MOST);
    const at = (name, i) => given[name][i] ?? given[name].at(-1) ?? FIRST[name];
    place.replaceChildren();
    for (let i = 0; i < n; i += 1) addSetup({ model: at("model", i), hardware: at("hardware", i) });
  };
  const isDefault = () => JSON.stringify(setups()) === JSON.stringify([FIRST]);
  const list = (name, then) => ({
    read: () => (isDefault() ? [] : setups().map((setup) => setup[name])),
    write: (values) => {
      given[name] = values;
      then?.();
    },
  });
  return { setups, lists: { model: list("model"), hardware: list("hardware", rebuild) } };
}

/** Make a field of a setup a combobox; a half typed name is no question. */
function suggest(input, find, changed) {
  input.id = freshId(input.dataset.part);
  input.previousElementSibling.setAttribute("for", input.id);
  const spot = document.createElement("span");
  input.replaceWith(spot);
  const take = (value) => {
    input.value = value;
    changed();
  };
  spot.replaceWith(combobox(input, find, take));
  input.addEventListener("change", changed);
  input.addEventListener("input", (event) => event.stopPropagation());
}

/** Return what finds models of the catalog by a text. */
function findModels(loading) {
  const detail = (item) => [item.params ? parameters(item.params) : "", item.weight_dtype];
  return async (text) =>
    (await loading())
      .filter((item) => matches(`${item.name} ${item.hf_id ?? ""}`, text))
      .map((item) => ({ value: item.name, text: item.name, detail: detail(item).filter(Boolean).join(" · ") }));
}

/** Return what finds accelerators of the catalog by a text, such as h100 or h100x8. */
function findHardware(loading) {
  const detail = (item, n) => [
    gigabytes(item.memory_bytes),
    si(item.memory_bytes_per_s, "B/s"),
    item.price ? `${dollars(item.price.usd_per_hour * n)}/h` : "",
  ];
  return async (text) => {
    const [, name, count] = text.toLowerCase().match(/^([a-z][\w-]*?)?(?:x(\d*))?$/) ?? [];
    const most = (item) => Math.max(...(item.node_sizes ?? [8]));
    const sizes = (item) => (count ? [Number(count)] : text ? [1, 2, 4, 8].filter((n) => n <= most(item)) : [1]);
    return (await loading())
      .filter((item) => matches(`${item.name} ${item.vendor ?? ""}`, name ?? text))
      .flatMap((item) => sizes(item).map((n) => [item, n, `${item.name}x${n}`]))
      .map(([item, n, whole]) => ({ value: whole, text: whole, detail: detail(item, n).filter(Boolean).join(" · ") }));
  };
}

/** Offer further values of a select; a value that the address holds stays chosen. */
function offer(control, values) {
  const known = new Set([...control.options].map((option) => option.value));
  for (const value of values) if (!known.has(value)) control.append(new Option(value, value));
}

/** Keep a logarithmic slider and its number in step. */
function logSlider(form, name) {
  const slider = document.getElementById(`${name}-slider`);
  const number = document.getElementById(name);
  const follow = () => {
    slider.value = Math.log2(Math.max(Number(number.value), 1));
  };
  slider.addEventListener("input", () => {
    const size = 2 ** Number(slider.value);
    const step = 2 ** Math.max(0, Math.floor(Math.log2(size)) - 3);
    number.value = String(Math.max(1, Math.round(size / step) * step));
  });
  number.addEventListener("input", follow);
  form.addEventListener("restored", follow);
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
    .filter(
      ([name, value]) =>
        value !== "" && !(name === "stage" && value === "decode") && !(name === "engine" && value === "vllm"),
    )
    .map(([name, value]) => `--${name.replaceAll("_", "-")} ${quoted(String(value))}`);
  return `plan analyze ${options.join(" ")}`;
}

/** Return a text as a shell reads it back. */
function quoted(value) {
  return /^[\w.,:/*-]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`;
}

/** Ask `path` of the API for every setup of a form; return each setup with its title and its document. */
export async function askSetups(page, path, signal) {
  const setups = page.setups();
  const documents = await Promise.all(setups.map((_, i) => call(`${path}?${page.queryOf(i)}`, { signal })));
  return documents.map((document, i) => ({
    setup: setups[i],
    title: setupName(setups[i], i, setups.length),
    document,
  }));
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
  return lines?.length
    ? el(
        "ul",
        { class: "notes" },
        lines.map((line) => el("li", {}, line)),
      )
    : null;
}
