/** Fit drawn charts into their place: texts that would be cut off or cover each other wrap, move or get more room. */

/** Width below which a chart is narrow, pixels. */
export const NARROW = 560;

/** Distance between a text and the edge of the chart or another text, pixels. */
const GAP = 3;

/** Names of bars longer than this have two lines on a narrow screen, characters. */
const LONG_NAME = 20;

/** Height that the second line of a name adds to a chart, pixels. */
const MORE_HEIGHT = 8;

/** Corrections of a chart after which the rest stays as it is; one is enough for most. */
const MOST_PASSES = 4;

/**
 * Return a figure for a narrow screen: long names of bars and annotations in two lines, no title beside the names, and
 * annotations do not widen the range of the axis. Its key `further` is the height that it needs more, pixels.
 */
export function narrowed(figure) {
  const found = structuredClone(figure);
  found.layout ??= {};
  narrowBars(found);
  if (found.layout.annotations) narrowNotes(found);
  return found;
}

function narrowNotes({ data, layout }) {
  for (const note of layout.annotations) note.text = note.text?.replace(/: /, ":<br>");
  layout.margin = { ...layout.margin, t: 48 };
  const axis = (layout.xaxis ??= {});
  const ends = data
    .filter((trace) => trace.type === "scatter")
    .flatMap((trace) => trace.x ?? [])
    .filter(Number.isFinite);
  if (axis.type !== "log" && !axis.range && ends.length) axis.range = [0, 1.08 * Math.max(...ends)];
}

function narrowBars(found) {
  const bars = found.data.filter((trace) => trace.type === "bar" && trace.orientation === "h" && !trace.yaxis);
  const names = [...new Set(bars.flatMap((trace) => trace.y ?? []))].filter((name) => typeof name === "string");
  if (!names.length) return;
  const { title: _, ...axis } = found.layout.yaxis ?? {};
  found.layout.yaxis = { ...axis, tickvals: names, ticktext: names.map(inTwoLines) };
  found.further = MORE_HEIGHT * found.layout.yaxis.ticktext.filter((name) => name.includes("<br>")).length;
  for (const trace of found.data) {
    if (Array.isArray(trace.text)) trace.text = trace.text.map((text) => text?.replace(" → ", "<br>→ "));
  }
}

function inTwoLines(name) {
  return name.length > LONG_NAME && !name.includes("<br>") ? wrapped(name, 2) : name;
}

/** Return a text in `n` lines of about the same length; a bracket near a break begins a line. */
function wrapped(text, n) {
  if (n < 2) return text;
  const wanted = text.length / n;
  const spaces = [...text.matchAll(/ /g)].map((found) => found.index);
  if (!spaces.length) return text;
  const distance = (i) => Math.abs(i - wanted) - (text[i + 1] === "(" ? text.length / 6 : 0);
  const at = spaces.reduce((best, i) => (distance(i) < distance(best) ? i : best));
  return `${text.slice(0, at)}<br>${wrapped(text.slice(at + 1), n - 1)}`;
}

/** Correct a chart that plotly has drawn until nothing is cut off; `plotly` is the library. */
export async function settle(plotly, node) {
  for (let pass = 0; pass < MOST_PASSES; pass += 1) {
    if (!node.isConnected || !node.clientWidth || !node._fullLayout) return;
    const found = corrections(node);
    if (!Object.keys(found).length) return;
    await plotly.relayout(node, found);
  }
}

/** Return what has to change in the layout of a drawn chart, in the keys of plotly's relayout. */
function corrections(node) {
  const whole = node.querySelector(".main-svg").getBoundingClientRect();
  const { l, t, w, h } = node._fullLayout._size;
  const area = { left: whole.left + l, top: whole.top + t, width: w, height: h };
  return { ...titles(node, whole, area), ...notes(node, whole), ...lengths(node, whole, area), ...names(node, area) };
}

/** Wrap the titles of axes that are longer than the chart. */
function titles(node, whole, area) {
  const found = {};
  const across = area.left + area.width / 2;
  const down = area.top + area.height / 2;
  const room = {
    xaxis: [".xtitle", "width", 2 * Math.min(across - whole.left, whole.right - across)],
    yaxis: [".ytitle", "height", 2 * Math.min(down - whole.top, whole.bottom - down)],
  };
  for (const [axis, [selector, side, most]] of Object.entries(room)) {
    const text = node.layout[axis]?.title?.text;
    const size = node.querySelector(selector)?.getBoundingClientRect()[side] ?? 0;
    if (!text || text.includes("<br>") || size <= most) continue;
    found[`${axis}.title.text`] = wrapped(text, Math.ceil(size / most));
  }
  return found;
}

/** Move annotations into the chart, and apart where one covers another. */
function notes(node, whole) {
  const found = [...node.querySelectorAll(".annotation")].map((note) => {
    const { left, right, top, bottom } = note.getBoundingClientRect();
    return { i: Number(note.dataset.index), left, right, top, bottom, by: 0 };
  });
  const move = (note, by) => {
    const kept = Math.max(whole.left + GAP - note.left, Math.min(whole.right - GAP - note.right, by));
    note.left += kept;
    note.right += kept;
    note.by += kept;
  };
  for (const note of found) move(note, 0);
  found.sort((a, b) => a.left + a.right - b.left - b.right);
  for (const [i, one] of found.entries()) {
    for (const other of found.slice(i + 1)) {
      const over = Math.min(one.right, other.right) - Math.max(one.left, other.left) + GAP;
      if (over <= GAP || Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) <= GAP) continue;
      move(one, -over / 2);
      move(other, one.right + GAP - other.left);
      move(one, Math.min(0, other.left - GAP - one.right));
    }
  }
  const moved = found.filter((note) => Math.abs(note.by) > 0.5);
  return Object.fromEntries(
    moved.map(({ i, by }) => [`annotations[${i}].xshift`, (node.layout.annotations[i].xshift ?? 0) + by]),
  );
}

/** Widen the range of the horizontal axis so that the names of marks are within the chart area. */
function names(node, area) {
  const axis = node._fullLayout.xaxis;
  const texts = [...node.querySelectorAll(".scatterlayer .textpoint text")]
    .filter((text) => text.textContent.trim())
    .map((text) => text.getBoundingClientRect());
  const left = Math.max(0, ...texts.map((box) => area.left - box.left));
  const right = Math.max(0, ...texts.map((box) => box.right - area.left - area.width));
  if (left + right < 1) return {};
  const [low, high] = axis.range;
  const perPixel = (high - low) / area.width;
  return { "xaxis.range": [low - left * perPixel, high + right * perPixel], "xaxis.autorange": false };
}

/** Shorten horizontal bars so that the texts at their ends fit. */
function lengths(node, whole, area) {
  const axis = node._fullLayout.xaxis;
  if (axis?.type !== "linear" || node.data.some((trace) => trace.type === "bar" && trace.orientation !== "h")) return {};
  const [low, high] = axis.range;
  const scale = area.width / (high - low);
  const zero = area.left - low * scale;
  const texts = [...node.querySelectorAll(".barlayer .bartext")].map((text) => text.getBoundingClientRect());
  const before = texts.filter((box) => box.right <= zero).map((box) => [(zero - box.right) / scale, box.width + GAP]);
  const after = texts.filter((box) => box.left >= zero).map((box) => [(box.left - zero) / scale, box.width + GAP]);
  const cut = texts.some((box) => box.right > whole.right || (box.right <= zero && box.left < area.left));
  if (!cut) return {};
  const end = whole.right - area.left;
  const needed = (side, factor) => Math.max(0, ...side.map(([length, width]) => length * factor + width));
  let [least, most] = [0, scale];
  for (let i = 0; i < 40; i += 1) {
    const middle = (least + most) / 2;
    if (needed(before, middle) + needed(after, middle) <= end) least = middle;
    else most = middle;
  }
  if (least < scale / 1e3) return {}; // the texts alone are wider than the chart
  const start = before.length ? needed(before, least) : 0;
  return { "xaxis.range": [-start / least, (area.width - start) / least], "xaxis.autorange": false };
}
