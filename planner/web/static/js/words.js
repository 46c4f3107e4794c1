/** Numbers as text with their units, in the same words as every other screen (catalogs/ui/words.py). */

/** Return a number in exponential form with `n` digits; an exact half is rounded to the even digit, as in Python. */
function rounded(x, n) {
  const [mantissa, power] = x.toExponential(60).split("e");
  const all = mantissa.replace(/[-.]/g, "");
  const even = /^50*$/.test(all.slice(n)) && Number(all[n - 1]) % 2 === 0;
  return even ? `${x < 0 ? "-" : ""}${all[0]}.${all.slice(1, n)}e${power}` : x.toExponential(n - 1);
}

/** Return a number with `n` significant digits, with an exponent where Python's format "g" has one. */
function short(x, n = 3) {
  if (x === 0) return "0";
  const [mantissa, power] = rounded(x, n).split("e");
  if (Number(power) < -4 || Number(power) >= n)
    return `${Number(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  return String(Number(`${mantissa}e${power}`));
}

/** Return a number with a fixed number of decimals; an exact half is rounded to the even digit, as in Python. */
function fixed(x, decimals) {
  const all = x.toFixed(60);
  const end = all.indexOf(".") + 1 + decimals;
  const kept = all.slice(0, end).replace(/\.$/, "");
  return /^50*$/.test(all.slice(end)) && Number(kept.at(-1)) % 2 === 0 ? kept : x.toFixed(decimals);
}

/** Return a number with thousands separated and a fixed number of decimals. */
export function grouped(x, decimals = 0) {
  return fixed(x, decimals).replace(/\B(?=(\d{3})+(?!\d))(?<!\.\d*)/g, ",");
}

/** Return a number with three digits, or in whole units from 1,000. */
export function digits(x) {
  return x >= 999.5 ? grouped(x) : short(x);
}

/** Return seconds with three digits and a suitable unit, hours for 10800; "unbounded" for null. */
export function seconds(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "unbounded";
  if (x >= 0.9995) return x < 999.5 ? `${short(x)} s` : duration(x);
  return x >= 0.9995e-3 || x === 0 ? `${short(x * 1e3)} ms` : `${short(x * 1e6)} µs`;
}

/** Amounts of US dollars below this are written with an exponent. */
const LEAST_DOLLARS = 1e-9;

/** Return an amount of US dollars, with two digits where it is small ("$0.000053"); "unknown" for null. */
export function dollars(x) {
  if (x === null || x === undefined) return "unknown";
  if (Math.abs(x) >= 0.1 || x === 0) return `$${grouped(x, 2)}`;
  if (Math.abs(x) < LEAST_DOLLARS) return `$${short(x, 2)}`;
  const power = Number(rounded(x, 2).split("e")[1]);
  return `$${Number(rounded(x, 2)).toFixed(1 - power).replace(/\.?0+$/, "")}`;
}

/** Return a fraction in per cent; "under 1 %" and "over 99 %" near the ends unless exact, "unknown" for null. */
export function percent(share) {
  if (share === null || share === undefined) return "unknown";
  if (share > 0.99 && share < 1) return "over 99 %";
  return share > 0 && share < 0.01 ? "under 1 %" : `${fixed(100 * share, 0)} %`;
}

/** Return a confidence as whole per cent, rounded down: one that is not reached never reads as if it were. */
export function surePercent(probability) {
  if (probability === null || probability === undefined || probability < 0.01) return percent(probability);
  if (probability > 0.99) return "over 99 %";
  return percent(Math.floor(100 * probability + 1e-9) / 100);
}

/** Return bytes as decimal gigabytes. */
export function gigabytes(bytes) {
  return `${fixed(bytes / 1e9, 1)} GB`;
}

/** Return a number with an SI prefix and its unit, for example "990 TFLOP/s". */
export function si(x, unit) {
  for (const [size, letter] of [
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (x >= size * 0.9995) return `${short(x / size)} ${letter}${unit}`;
  }
  return `${short(x)} ${unit}`.trim();
}

/** Return a number of parameters of a model, for example "8.03 B"; thousands of millions are B, and never G. */
export function parameters(n) {
  return si(n, "").replace(/G$/, "B");
}

/** Return a whole difference with its sign, "+12" or "−3"; one that rounds to zero has no sign. */
export function withSign(x) {
  const size = fixed(Math.abs(x), 0);
  return `${size === "0" ? "" : x > 0 ? "+" : "−"}${size}`;
}

/** Return a change of a figure: in per cent, as a factor from ten times on, or in points if it is one of shares. */
export function changeWords({ change, change_is: kind }) {
  if (change === null || change === undefined) return "";
  if (kind !== "difference" && change >= 9) return `× ${digits(1 + change)}`;
  return `${withSign(100 * change)} ${kind === "difference" ? "points" : "%"}`;
}

/** Return a rate in words; "none" for null. */
export function rate(perS) {
  return perS === null || perS === undefined ? "none" : `${digits(perS)} requests/s`;
}

/** Return a number of things in words: "1 request", "1,000 requests". */
export function counted(n, noun) {
  return `${grouped(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** Return a point of time in the reader's time zone. */
export function moment(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? "" : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** Return a duration in the largest unit that is not above it, such as "2.5 min". */
export function duration(x) {
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ])
    if (x >= size) return `${digits(x / size)} ${unit}`;
  return `${digits(x)} s`;
}
