/** The roofline chart: the ceilings of an accelerator and one mark per operator, by intensity and rate. */

import { boundWords, fillOf, legend, markPath, svg } from "/static/js/bounds.js";
import { el, fill } from "/static/js/parts.js";
import { digits, percent, seconds, si } from "/static/js/words.js";

/** Width of a letter of a label, pixels. */
const LETTER = 6.4;

const PAD = { left: 58, right: 14, top: 14, bottom: 44 };

/**
 * Return one panel per analysis, with equal axes, so that panels compare.
 *
 * @param {{title: string, document: object}[]} shown Titles and documents of `/analyze`.
 * @param {number} room The width that there is for all panels; each follows its own width later.
 */
export function rooflines(shown, room) {
  const columns = Math.min(shown.length, Math.max(Math.floor((room + 20) / 400), 1));
  const extent = domain(shown.map((one) => one.document));
  const note = el("figcaption", {}, hint(shown));
  const choose = (words) => fill(note, words ?? hint(shown));
  const panels = shown.map(({ title, document }) =>
    panel(title, document, extent, choose, shown.length, (room - 20 * (columns - 1)) / columns),
  );
  const bounds = new Set(
    shown.flatMap(({ document }) => document.operators.filter((op) => op.flops > 0).map((op) => op.bound)),
  );
  return [el("div", { class: "panels" }, panels), legend(bounds), note];
}

function hint(shown) {
  const silent = [
    ...new Set(shown.flatMap(({ document }) => document.operators.filter((op) => !op.flops).map((op) => op.name))),
  ];
  const left = silent.length ? ` Not in the chart, because they only move data: ${silent.join(", ")}.` : "";
  return [
    "Larger marks take more of the step. A mark on a line runs as fast as the hardware allows.",
    `Point at a mark, or reach it by Tab and arrow keys, for its figures.${left}`,
  ].join(" ");
}

function domain(documents) {
  const x = [],
    y = [];
  for (const found of documents) {
    for (const op of found.operators)
      if (op.flops > 0 && op.seconds > 0) {
        x.push(op.flops_per_byte, 1.4 * op.flops_per_byte);
        y.push(op.flops / op.seconds);
      }
    x.push((Math.max(...ceilings(found).map(([, flops]) => flops)) / found.roofline.memory_bytes_per_s) * 4);
    y.push(Math.max(...ceilings(found).map(([, flops]) => flops)) * 1.8);
  }
  const powers = (values) => [Math.floor(Math.log10(Math.min(...values) * 0.8)), Math.log10(Math.max(...values))];
  return { x: powers(x), y: powers(y) };
}

/** Return [data types, FLOP/s] of the ceilings, the highest first; data types of equal rates share a line. */
function ceilings({ roofline, question }) {
  const byRate = new Map();
  for (const [dtype, flops] of Object.entries(roofline.peak_flops))
    byRate.set(flops, [...(byRate.get(flops) ?? []), dtype]);
  const used = roofline.peak_flops[question.weight_dtype] ?? Math.max(...Object.values(roofline.peak_flops));
  const sixteen = roofline.peak_flops.bf16 ?? roofline.peak_flops.fp16 ?? used;
  return [...byRate]
    .filter(([flops]) => flops <= Math.max(used, sixteen) && flops >= Math.min(used, sixteen))
    .sort((a, b) => b[0] - a[0])
    .map(([flops, dtypes]) => [dtypes.join(", "), flops]);
}

function panel(title, found, extent, choose, n, room) {
  const place = el("div", { class: "panel" });
  const head = el("h2", {}, title);
  const draw = (wanted) => {
    const width = Math.max(Math.floor(wanted), 300);
    fill(
      place,
      n > 1 ? head : null,
      plot(title, found, extent, choose, width, Math.min(Math.max(width * 0.58, 280), 430)),
    );
  };
  let before = room;
  draw(room);
  new ResizeObserver(
    ([
      {
        contentRect: { width },
      },
    ]) => {
      if (width && Math.abs(width - before) > 2) {
        before = width;
        draw(width);
      }
    },
  ).observe(place);
  return place;
}

function plot(title, found, extent, choose, width, height) {
  const at = {
    x: (value) => PAD.left + along(value, extent.x) * (width - PAD.left - PAD.right),
    y: (value) => height - PAD.bottom - along(value, extent.y) * (height - PAD.top - PAD.bottom),
  };
  const box = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: height - PAD.bottom, width, height };
  const operators = found.operators.filter((op) => op.flops > 0 && op.seconds > 0);
  const total = found.operators.reduce((sum, op) => sum + op.seconds, 0);
  const placed = operators.map((op) => ({
    op,
    share: op.seconds / total,
    x: at.x(op.flops_per_byte),
    y: at.y(op.flops / op.seconds),
    r: 4 + 15 * Math.sqrt(op.seconds / total),
  }));
  const taken = placed.map(({ x, y, r }) => [x - r, y - r, x + r, y + r]);
  const lines = [axes(extent, at, box), ceilingLines(found, extent, at, box, taken)];
  const shape = { class: "plot", viewBox: `0 0 ${width} ${height}`, width, height, role: "group" };
  return svg(
    "svg",
    { ...shape, "aria-label": `Roofline of ${title}` },
    lines,
    marks(title, placed, choose),
    names(placed, box, taken),
  );
}

/** Return the place of a value between the ends of a logarithmic axis, from 0 to 1. */
function along(value, [low, high]) {
  return (Math.log10(value) - low) / (high - low);
}

/** Return the grid with its ticks, the axes and their titles. */
function axes(extent, at, { left, right, top, bottom, height }) {
  const made = [];
  for (let p = Math.ceil(extent.x[0]); p <= extent.x[1]; p += 1) {
    const x = at.x(10 ** p);
    made.push(svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
    made.push(svg("text", { class: "faint", x, y: bottom + 16, "text-anchor": "middle", text: tick(10 ** p) }));
  }
  for (let p = Math.ceil(extent.y[0]); p <= extent.y[1]; p += 1) {
    const y = at.y(10 ** p);
    made.push(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
    const text = si(10 ** p, "").trim();
    made.push(svg("text", { class: "faint", x: left - 6, y: y + 4, "text-anchor": "end", text }));
  }
  const across = {
    class: "faint",
    x: right,
    y: height - 6,
    "text-anchor": "end",
    text: "FLOP per byte of memory traffic",
  };
  made.push(svg("text", across), svg("text", { class: "faint", x: 4, y: 10, text: "FLOP/s" }));
  made.push(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  made.push(svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }));
  return made;
}

/** Return the ceilings of arithmetic and of memory with their labels, whose boxes join `taken`. */
function ceilingLines(found, extent, at, box, taken) {
  const memory = found.roofline.memory_bytes_per_s;
  const roofs = ceilings(found);
  const highest = 10 ** extent.x[1];
  const from = Math.max(10 ** extent.x[0], 10 ** extent.y[0] / memory);
  const made = roofs.flatMap(([dtypes, flops], i) => {
    const start = i === 0 ? `M${at.x(from)} ${at.y(from * memory)}L` : "M";
    const text = `${dtypes} ${si(flops, "FLOP/s")}`;
    const y = at.y(flops) + (i === 0 ? -5 : 14);
    taken.push([box.right - text.length * LETTER, y - 12, box.right, y + 2]);
    return [
      svg("path", { class: "roof", d: `${start}${at.x(flops / memory)} ${at.y(flops)}H${at.x(highest)}` }),
      svg("text", { x: box.right, y, "text-anchor": "end", text }),
    ];
  });
  const ridge = roofs[0][1] / memory;
  const ends = { x1: at.x(from), y1: at.y(from * memory), x2: at.x(ridge), y2: at.y(roofs[0][1]) };
  return [made, alongLine(`memory ${si(memory, "B/s")}`, ends, taken)];
}

/** Return a text along a rising line, above it and where the fewest things are near; its boxes join `taken`. */
function alongLine(text, { x1, y1, x2, y2 }, taken) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  const [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length];
  const size = text.length * LETTER;
  const boxes = (start) =>
    Array.from({ length: 8 }, (_, i) => start + (size * (i + 0.5)) / 8).map((far) => {
      const [x, y] = [x1 + far * dx + 11 * dy, y1 + far * dy - 11 * dx];
      return [x - 8, y - 8, x + 8, y + 8];
    });
  const starts = [0.5, 0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.9, 0.1].map((share) => share * Math.max(length - size, 0));
  const hits = (start) => boxes(start).filter((one) => taken.some((other) => overlap(one, other))).length;
  const best = starts.reduce((least, start) => (hits(start) < hits(least) ? start : least));
  taken.push(...boxes(best));
  const [x, y] = [x1 + best * dx + 6 * dy, y1 + best * dy - 6 * dx];
  const angle = (Math.atan2(dy, dx) * 180) / Math.PI;
  return svg("text", { x, y, transform: `rotate(${angle} ${x} ${y})`, text });
}

/** Return whether two boxes [left, top, right, bottom] overlap. */
function overlap([l, t, r, b], [left, top, right, bottom]) {
  return l < right && left < r && t < bottom && top < b;
}

/** Return the marks of the operators, one of which has the focus of the keyboard; arrow keys move it. */
function marks(title, placed, choose) {
  const made = placed.map(({ op, share, x, y, r }, i) => {
    const words = inWords(op, share);
    const show = () => choose(words);
    const hide = () => choose();
    return svg("path", {
      class: "mark",
      d: markPath(op.bound, x, y, r),
      fill: fillOf(op.bound),
      tabindex: i === 0 ? 0 : -1,
      role: "img",
      "aria-label": words,
      on: {
        pointerenter: show,
        focus: show,
        click: (event) => event.currentTarget.focus(),
        pointerleave: hide,
        blur: hide,
      },
    });
  });
  const label = `Operators of ${title}, by time; arrow keys move between them`;
  const group = svg("g", { role: "group", "aria-label": label }, made);
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const now = made.indexOf(document.activeElement);
    if (!step || now < 0) return;
    event.preventDefault();
    const next = made[(now + step + made.length) % made.length];
    made[now].setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
  return group;
}

/** Return the figures of an operator in words. */
function inWords(op, share) {
  return [
    `${op.name}: ${seconds(op.seconds)}, ${percent(share)} of device time`,
    `${si(op.flops / op.seconds, "FLOP/s")} at ${digits(op.flops_per_byte)} FLOP/B`,
    `bound by ${boundWords(op.bound)}`,
    `${percent(op.roofline_share)} of its roofline`,
  ].join("; ");
}

/** Return the names of the largest operators, each at a spot where it covers nothing; without such a spot, none. */
function names(placed, { left: least, right: most, top, bottom }, taken) {
  return placed.slice(0, 8).map(({ op, x, y, r }) => {
    const size = op.name.length * LETTER;
    const spots = [0, 14, -14].flatMap((rise) => {
      const aside = Math.sqrt(Math.max(r * r - (rise * rise) / 4, 0)) + 5;
      return [
        [x + aside, y + 4 + rise],
        [x - aside - size, y + 4 + rise],
      ];
    });
    spots.push([x - size / 2, y + r + 14], [x - size / 2, y - r - 6]);
    const boxes = spots.map(([left, base]) => [left, base - 10, left + size, base + 3]);
    const free = boxes.findIndex(
      (one) =>
        one[0] > least &&
        one[2] < most &&
        one[1] > top &&
        one[3] < bottom &&
        !taken.some((other) => overlap(one, other)),
    );
    if (free < 0) return null;
    taken.push(boxes[free]);
    return svg("text", { x: spots[free][0], y: spots[free][1], "aria-hidden": "true", text: op.name });
  });
}

function tick(value) {
  return value >= 1000 ? si(value, "").trim() : String(Number(value.toPrecision(1)));
}
