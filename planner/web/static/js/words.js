/** Numbers as text with their units, in the same words as every other screen (catalogs/ui/words.py). */

/** Return a number with three significant digits, without an exponent between 0.0001 and 999. */
function short(x) {
  if (x === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(Number(x.toExponential(2)))));
  if (magnitude < -4 || magnitude >= 3) {
    const [mantissa, power] = x.toExponential(2).split("e");
    return `${Number(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  }
  return String(Number(x.toPrecision(3)));
}

/** Return a number with thousands separated and a fixed number of decimals. */
export function grouped(x, decimals = 0) {
  return x.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** Return a number with three digits, or in whole units from 1,000. */
export function digits(x) {
  return x >= 1000 ? grouped(x) : short(x);
}

/** Return seconds with three digits and a suitable unit; "unbounded" for null. */
export function seconds(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "unbounded";
  if (x >= 0.9995) return `${x < 1000 ? short(x) : x.toFixed(0)} s`;
  return x >= 0.9995e-3 || x === 0 ? `${short(x * 1e3)} ms` : `${short(x * 1e6)} us`;
}

/** Return an amount of US dollars; "unknown" for null. */
export function dollars(x) {
  if (x === null || x === undefined) return "unknown";
  if (Math.abs(x) >= 0.1 || x === 0) return `$${grouped(x, 2)}`;
  return `$${Number(x.toPrecision(2)) < 1e-4 ? x.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2") : Number(x.toPrecision(2))}`;
}

/** Return a fraction in per cent; "under 1 %" and "over 99 %" near the ends, "unknown" for null. */
export function percent(share) {
  if (share === null || share === undefined) return "unknown";
  if (share > 0.99 && share <= 1) return "over 99 %";
  return share >= 0.01 || share === 0 ? `${(100 * share).toFixed(0)} %` : "under 1 %";
}

/** Return bytes as decimal gigabytes. */
export function gigabytes(bytes) {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

/** Return a number with an SI prefix and its unit, for example "990 TFLOP/s". */
export function si(x, unit) {
  for (const [size, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (x >= size * 0.9995) return `${short(x / size)} ${letter}${unit}`;
  }
  return `${short(x)} ${unit}`.trim();
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
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (x >= size) return `${short(x / size)} ${unit}`;
  return `${short(x)} s`;
}
