/** Charts with plotly, loaded at the first chart. Colours come from the theme; series also differ by pattern. */

import { NARROW, narrowed, settle } from "/static/js/chart_fit.js";
import { digits } from "/static/js/words.js";

/** The palette of Okabe and Ito, distinguishable with every kind of colour vision (catalogs/ui/charts.py). */
export const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C", "#7A5195"];

export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

export const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "hexagon"];

export const HATCHES = ["", "/", ".", "x", "\\", "-", "+"];

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/vendor/plotly/plotly-basic.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The charts could not be loaded"));
    document.head.append(script);
  });
  return library;
}

/** Return the line and the marker of the i-th series. */
export function seriesStyle(i) {
  const colour = COLOURS[i % COLOURS.length];
  return {
    line: { color: colour, dash: DASHES[i % DASHES.length], width: 2 },
    marker: { color: colour, symbol: MARKS[i % MARKS.length], size: 8 },
  };
}

/** Return a logarithmic axis over values, with ticks that do not crowd: more per decade where there are few decades. */
export function logAxis(title, values) {
  const known = values.filter((value) => value > 0);
  const [low, high] = [Math.min(...known), Math.max(...known)].map(Math.log10);
  const steps = high - low < 1 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : high - low < 2.5 ? [1, 2, 5] : [1];
  const decades = Array.from({ length: Math.ceil(high) - Math.floor(low) + 3 }, (_, i) => Math.floor(low) - 1 + i);
  const ticks = decades.flatMap((decade) => steps.map((step) => step * 10 ** decade));
  return { type: "log", title: { text: title }, tickvals: ticks, ticktext: ticks.map(digits) };
}

/** Return the fill of the i-th kind of bar. */
export function barStyle(i, colour = COLOURS[i % COLOURS.length]) {
  const pattern = {
    shape: HATCHES[i % HATCHES.length],
    solidity: 0.15,
    size: 7,
    fillmode: "overlay",
    fgcolor: "#4a5563",
    fgopacity: 0.45,
  };
  return { color: colour, pattern, line: { color: "#ffffff", width: 0.5 } };
}

function theme(node) {
  const style = getComputedStyle(node);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), line: of("--line"), back: of("--back"), soft: of("--soft"), font: style.fontFamily };
}

function themed(layout, node) {
  const { ink, line, back, font } = theme(node);
  const axis = (own = {}) => ({
    ...own,
    gridcolor: line,
    zerolinecolor: line,
    linecolor: line,
    automargin: true,
    title: { ...own.title, font: { size: 13 } },
  });
  const made = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, family: font, size: 12 },
  };
  for (const key of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) made[key] = axis(layout[key]);
  made.xaxis ??= axis();
  made.yaxis ??= axis();
  made.hoverlabel = { bgcolor: back, bordercolor: line, font: { color: ink } };
  made.colorway ??= COLOURS;
  delete made.template;
  return made;
}

/** A legend above the chart, whose lines grow upwards, away from the marks. */
export const LEGEND_ABOVE = { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" };

/** Where a horizontal legend stands on a narrow screen: its lines grow downwards, away from the marks. */
const BELOW = { y: 0, yref: "container", yanchor: "bottom", x: 0, xanchor: "left" };

/** Height of one line of a legend, pixels. */
const LEGEND_LINE = 20;

/** Return the further height that a narrow screen needs for a horizontal legend, one line for each entry. */
function legendHeight({ data, layout }, width) {
  if (width >= NARROW || layout?.legend?.orientation !== "h" || layout.showlegend === false) return 0;
  const shown = new Set(
    data.filter((trace) => trace.showlegend !== false).map((trace) => trace.legendgroup || trace.name),
  );
  return LEGEND_LINE * shown.size;
}

/** Fit a figure into a narrow screen; its legend stands below it. */
function fitted(figure, width) {
  if (width >= NARROW || !figure.layout) return figure;
  const found = narrowed(figure);
  if (found.layout.legend?.orientation === "h") found.layout.legend = { ...found.layout.legend, ...BELOW };
  return found;
}

const drawn = new Set();

/**
 * Draw a chart into a node, or draw it again.
 *
 * @param {HTMLElement} node Where; it gets the role of an image with `label`, its description in words.
 * @param {{data: object[], layout?: object}} figure Traces and layout in the keys of plotly's reference.
 */
export async function draw(node, figure, { label, height = 340, onClick } = {}) {
  const plotly = await load();
  node.classList.add("chart");
  node.setAttribute("role", "img");
  if (label) node.setAttribute("aria-label", label);
  let painted = 0; // the width of the last painting; 0 while the chart is hidden
  const paint = async () => {
    painted = node.clientWidth;
    const { data, layout, further = 0 } = structuredClone(fitted(figure, painted));
    const below = legendHeight(figure, painted);
    const tall = height + below + further;
    const margin = { l: 10, r: 20, t: 24, b: 10, ...layout?.margin };
    const whole = themed(
      { ...layout, margin: { ...margin, b: margin.b + below + (below ? LEGEND_LINE * 2 : 0) }, height: tall },
      node,
    );
    if (painted) whole.width = painted; // plotly keeps the width of a chart that was hidden when it was drawn
    node.style.height = `${tall}px`;
    await plotly.react(node, data, whole, { displayModeBar: false });
    await settle(plotly, node);
  };
  node.paint = paint;
  drawn.add(node);
  await paint();
  node.widths ??= new ResizeObserver(() => node.clientWidth && node.clientWidth !== painted && node.paint());
  node.widths.observe(node);
  node.querySelectorAll("[tabindex]").forEach((part) => part.removeAttribute("tabindex"));
  if (onClick) node.on("plotly_click", onClick);
  return node;
}

function repaint() {
  for (const node of drawn) {
    if (node.isConnected) node.paint();
    else drawn.delete(node);
  }
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

/** Print is light: the class sets the colours of the theme, and the charts follow. */
function printing(on) {
  document.documentElement.classList.toggle("printing", on);
  repaint();
}

window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
