/** What bounds an operator: words, patterns and shapes, which differ without their colours. */

import { el } from "/static/js/parts.js";

const SVG = "http://www.w3.org/2000/svg";

/** The bounds of an operator with the names of their patterns; documents of the API bring their words. */
export const BOUNDS = {
  memory: { key: "memory" },
  compute: { key: "compute" },
  link: { key: "link" },
  "fixed cost": { key: "fixed" },
  host: { key: "fixed" },
};

/** Take the words of the bounds from a document of the API. */
export function useWords(words) {
  for (const [bound, text] of Object.entries(words)) (BOUNDS[bound] ??= { key: "fixed" }).words = text;
}

/** Return a bound in words. */
export function boundWords(bound) {
  return BOUNDS[bound]?.words ?? bound;
}

/** Return an element of SVG; attributes and children as `el` takes them. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter(Boolean));
  return node;
}

/** Return the fill of a bound. The first call adds the patterns to the page. */
export function fillOf(bound) {
  if (!document.getElementById("bound-memory")) document.body.append(patterns());
  return `url(#bound-${BOUNDS[bound]?.key ?? "fixed"})`;
}

function patterns() {
  const make = (key, size, ...marks) =>
    svg(
      "pattern",
      { id: `bound-${key}`, width: size, height: size, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: size, height: size, class: `b-${key}` }),
      marks,
    );
  const all = [
    make("compute", 6, svg("path", { d: "M-1 1 1 -1M0 6 6 0M5 7 7 5", class: "b-hatch" })),
    make("memory", 6, svg("circle", { cx: 3, cy: 3, r: 1.1, class: "b-dot" })),
    make("link", 7, svg("path", { d: "M0 0 7 7M0 7 7 0", class: "b-hatch" })),
    make("fixed", 6, svg("path", { d: "M0 3H6", class: "b-hatch" })),
  ];
  const holder = svg("svg", { width: 0, height: 0, "aria-hidden": "true", focusable: "false" }, svg("defs", {}, all));
  holder.style.position = "absolute";
  return holder;
}

/** Return the outline of a mark of a bound, of radius r around a point. */
export function markPath(bound, x, y, r) {
  if (bound === "compute") return `M${x - r * 0.9} ${y - r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}Z`;
  if (bound === "link") return `M${x} ${y - 1.25 * r}L${x + 1.25 * r} ${y}L${x} ${y + 1.25 * r}L${x - 1.25 * r} ${y}Z`;
  if (bound === "fixed cost" || bound === "host")
    return `M${x} ${y - 1.2 * r}L${x + 1.15 * r} ${y + 0.8 * r}L${x - 1.15 * r} ${y + 0.8 * r}Z`;
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

/** Return the legend of the bounds that occur. */
export function legend(found) {
  const shown = Object.keys(BOUNDS).filter((bound) => found.has(bound));
  return el(
    "ul",
    { class: "keys", "aria-label": "What bounds an operator" },
    shown.map((bound) =>
      el(
        "li",
        {},
        svg(
          "svg",
          { viewBox: "0 0 18 18", "aria-hidden": "true" },
          svg("path", { d: markPath(bound, 9, 9, 6), fill: fillOf(bound), class: "axis" }),
        ),
        `bound by ${boundWords(bound)}`,
      ),
    ),
  );
}
