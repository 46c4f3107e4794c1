/** Builders of the elements that all pages share. Text is always set as text, so that no name becomes markup. */

import { Problem } from "/static/js/api.js";
import { gigabytes } from "/static/js/words.js";

let nextId = 0;

/** Return an id that no other element of the page has. */
export function freshId(name) {
  nextId += 1;
  return `${name}-${nextId}`;
}

/**
 * Return an element. `attributes` are set as attributes, but for `on` (listeners by event) and `text`;
 * null, undefined and false leave an attribute out. Children are nodes or texts; null and false are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "text") {
      node.textContent = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace the children of a node. */
export function fill(node, ...children) {
  node.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

/**
 * Return a table in a box that scrolls. A cell is a text or a node; `numeric` are the right-aligned columns. The rows
 * of a `stacked` table become blocks on a narrow screen: each cell on a line of its own, after the head of its column.
 */
export function table({ head, rows, caption, numeric = [], label, stacked = false }) {
  const kind = (i, cell = "") =>
    numeric.includes(i) ? "number" : typeof cell === "string" && cell.length > 40 ? "long" : null;
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, i) =>
        i === 0
          ? el("th", { scope: "row", class: kind(i, cell) }, cell ?? "")
          : el("td", { class: kind(i, cell), "data-head": stacked ? head[i] : null }, cell ?? ""),
      ),
    ),
  );
  const heads = head.map((text, i) => (text === "" ? el("td") : el("th", { scope: "col", class: kind(i) }, text)));
  const made = el(
    "table",
    { class: stacked ? "stacked" : null },
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, heads)),
    el("tbody", {}, body),
  );
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label ?? caption ?? "Table" }, made);
}

/** Return lines as a list; null without lines. */
export function bullets(lines, attributes = {}) {
  return lines?.length
    ? el(
        "ul",
        attributes,
        lines.map((line) => el("li", {}, line)),
      )
    : null;
}

/** Return the most important figures: rows of label, value and an optional detail. */
export function cards(rows) {
  return el(
    "dl",
    { class: "cards" },
    rows.map(([label, value, detail]) =>
      el("div", {}, el("dt", {}, label), el("dd", {}, value, detail ? el("small", {}, detail) : null)),
    ),
  );
}

/** Return a section that is folded until it is opened; `make` may be a function, called at the first opening. */
export function fold(title, make, { open = false } = {}) {
  const node = el("details", { class: "fold", open }, el("summary", {}, title));
  const build = () => {
    if (node.dataset.built) return;
    node.dataset.built = "yes";
    node.append(...[typeof make === "function" ? make() : make].flat(Infinity).filter(Boolean));
  };
  if (open || typeof make !== "function") build();
  node.addEventListener("toggle", () => node.open && build());
  window.addEventListener("beforeprint", () => node.isConnected && build());
  return node;
}

/** Open everything that is folded while the page is printed. */
window.addEventListener("beforeprint", () => {
  for (const node of document.querySelectorAll("details.fold:not([open])")) {
    node.dataset.folded = "yes";
    node.open = true;
  }
});
window.addEventListener("afterprint", () => {
  for (const node of document.querySelectorAll("details[data-folded]")) {
    delete node.dataset.folded;
    node.open = false;
  }
});

/** Return a labelled form control; `hint` explains it in one sentence. */
export function field(label, control, { hint, wide = false } = {}) {
  control.id ||= freshId("field");
  const note = hint ? el("small", { id: `${control.id}-hint`, class: "hint" }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return el("div", { class: wide ? "field wide" : "field" }, el("label", { for: control.id }, label), control, note);
}

/** Return a select element; a choice is a text, or a pair of value and text. */
export function select(name, choices, attributes = {}) {
  const value = attributes.value;
  const options = choices.map((choice) => {
    const [key, text] = Array.isArray(choice) ? choice : [choice, choice];
    return el("option", { value: key, selected: value !== undefined && key === value }, text);
  });
  const { value: _, ...others } = attributes;
  return el("select", { name: name || null, ...others }, options);
}

/** Return a button. */
export function button(text, onClick, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click: onClick } }, text);
}

/** Return a button that copies a text, or what a function returns, and states that it did. */
export function copyButton(text, label = "Copy") {
  const made = button(
    label,
    async () => {
      const copied = typeof text === "function" ? await text() : text;
      try {
        await navigator.clipboard.writeText(copied);
        made.textContent = "Copied";
        announce("Copied");
      } catch {
        made.textContent = "Select the text to copy it";
      }
      setTimeout(() => {
        made.textContent = label;
      }, 1600);
    },
    { class: "quiet" },
  );
  return made;
}

/** Return a command or a file that users copy. */
export function codeBlock(text, label) {
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": label }, el("code", {}, text));
  return el("div", { class: "code" }, pre, copyButton(text));
}

/** Return a Share button: it copies the address of the page, which holds the state of all controls. */
export function shareButton(address = () => window.location.href) {
  return copyButton(address, "Share");
}

/** Offer a text as a file. */
export function download(name, text, type = "application/json") {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Return a problem in words: the rule that was broken, the value, the nearest valid choice. */
export function problemNote(error) {
  if (!(error instanceof Problem))
    return el("div", { class: "problem", role: "alert" }, el("p", {}, String(error.message ?? error)));
  const given = error.value !== undefined ? el("p", {}, "Given: ", el("code", {}, error.value)) : null;
  const near =
    error.nearest !== undefined ? el("p", {}, "Nearest valid choice: ", el("code", {}, error.nearest)) : null;
  const parts = error.rule
    ? [el("p", {}, el("strong", {}, sentence(error.rule))), given, near, hint(error.hint)]
    : [el("p", {}, error.message)];
  return el("div", { class: "problem", role: "alert" }, parts);
}

/** Return what helps with a problem; where it is a command that lists a catalog, the page of that catalog. */
function hint(text) {
  if (!text) return null;
  const kind = text.match(/^`catalog list (\w+)`/)?.[1];
  return el("p", {}, kind ? el("a", { href: `/catalog?kind=${kind}` }, `All ${kind} of the catalog`) : text);
}

/** Return a text with a capital first letter and a full stop; names such as "ttft.p99" and "h100x8" stay as typed. */
export function sentence(text) {
  const end = /[.!?:]$/.test(text) ? "" : ".";
  if (/^\S*(\d|\.[a-z])/i.test(text)) return text + end;
  return text.charAt(0).toUpperCase() + text.slice(1) + end;
}

let region = null;

/** Have screen readers announce a text. */
export function announce(text) {
  region ??= document
    .getElementById("content")
    .appendChild(el("div", { class: "unseen", role: "status", "aria-live": "polite" }));
  region.textContent = text;
}

/** Return a bar of parts, each with a pattern and a colour of its own, and its legend with the sizes in words. */
export function partsBar(parts, total, label) {
  const all =
    Math.max(
      total,
      parts.reduce((sum, part) => sum + part.size, 0),
    ) || 1;
  const bar = el("div", {
    class: "parts",
    role: "img",
    "aria-label": `${label}: ${parts.map((p) => `${p.name} ${p.words}`).join(", ")}`,
  });
  parts.forEach((part, i) => {
    const piece = el("span", { class: `part pattern-${part.pattern ?? i}`, title: `${part.name} ${part.words}` });
    piece.style.width = `${(100 * part.size) / all}%`;
    bar.append(piece);
  });
  const legend = el(
    "ul",
    { class: "legend" },
    parts.map((part, i) =>
      el(
        "li",
        {},
        el("span", { class: `key pattern-${part.pattern ?? i}`, "aria-hidden": "true" }),
        `${part.name} ${part.words}`,
      ),
    ),
  );
  return el("div", {}, bar, legend);
}

/** Return a bar of the memory of one accelerator: pairs of a name and bytes, and what is free. */
export function memoryBar(sizes, device) {
  const parts = sizes.filter(([, size]) => size > 0).map(([name, size], i) => ({ name, size, pattern: i }));
  const free = device - parts.reduce((sum, { size }) => sum + size, 0);
  if (free > 0) parts.push({ name: "free", size: free, pattern: 5 });
  const shown = parts.map((part) => ({ ...part, words: gigabytes(part.size) }));
  return partsBar(shown, device, `Memory of one accelerator, ${gigabytes(device)}`);
}

/** Wait until no call came for `ms` milliseconds, then run. */
export function debounced(run, ms = 150) {
  let timer = null;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), ms);
  };
}

/** On a narrow screen the navigation scrolls sideways: begin where the link of this page is in view. */
const here = document.querySelector("header.site nav [aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
