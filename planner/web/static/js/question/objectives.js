/** The rows of objectives: a latency, a statistic, a limit and a condition on the lengths of requests each. */

/** An objective: metric, condition, statistic, limit and unit, which those on a rate may leave out. */
const WRITTEN = /^(?:(\w+)(?:\[([^[\]]*)\])?\.)?(mean|p[\d.]+)\s*=\s*([\d.eE+-]+)\s*(s|ms|us|min|h|tokens\/s)?$/;

/** Return the objectives that commas separate; conditions keep their commas. */
export function splitObjectives(text) {
  return text
    .split(/,(?![^[\]]*\])/)
    .map((part) => part.trim())
    .filter(Boolean);
}

const at = (id) => document.getElementById(id);

/** Give life to the rows of objectives; return what reads and writes them. `usual` are objectives for an empty form. */
export function objectiveRows(usual, changed) {
  const place = at("slo-rows");
  let only = ""; // the only metric that objectives may have; empty for any
  const limitMetrics = (row) => {
    const metrics = row.querySelector("select");
    const lengths = row.querySelector(".lengths");
    for (const option of metrics.options) option.hidden = option.disabled = only !== "" && option.value !== only;
    if (only) pick(metrics, only);
    lengths.hidden = only !== "";
    if (only) lengths.value = "";
  };
  const add = (written = "") => {
    const [, metric, condition, stat, limit, unit] = written.match(WRITTEN) ?? [];
    const usualUnit = (name) => [...metrics.options].find((option) => option.value === name)?.dataset.unit;
    const row = at("slo-row").content.firstElementChild.cloneNode(true);
    const [metrics, stats, number, units, lengths] = row.querySelectorAll("select, input");
    limitMetrics(row);
    if (stat) {
      pick(metrics, metric ?? (only || "ttft"));
      pick(stats, stat);
      pick(units, unit ?? usualUnit(metric) ?? "s");
      number.value = limit;
      lengths.value = condition ?? "";
    }
    row.querySelector("button").addEventListener("click", () => {
      row.remove();
      changed();
      (place.querySelector(".slo select") ?? at("add-slo")).focus();
    });
    metrics.addEventListener("change", () => limitUnits(row));
    limitUnits(row);
    place.append(row);
    return row;
  };
  at("add-slo").addEventListener("click", () => {
    add().querySelector("select").focus();
  });
  return {
    read: () =>
      [...place.children]
        .map((row) => {
          const [metric, stat, limit, unit, lengths] = [...row.querySelectorAll("select, input")].map((control) =>
            control.value.trim(),
          );
          const condition = lengths ? `[${lengths}]` : "";
          return limit === "" ? "" : `${metric}${condition}.${stat}=${limit}${unit}`;
        })
        .filter(Boolean),
    write: (values) => {
      place.replaceChildren();
      const given = values.flatMap(splitObjectives);
      for (const written of given.length ? given : usual) add(written);
    },
    /** Let objectives have one metric only, or any if it is empty; `write` replaces those of another metric. */
    only: (metric) => {
      only = metric;
      for (const row of place.children) {
        if (!only || row.querySelector("select").value === only) limitMetrics(row);
      }
    },
  };
}

/** Offer the units of the metric of a row: that of a rate, or those of a time. */
function limitUnits(row) {
  const [metrics, , units] = row.querySelectorAll("select");
  const rates = new Set([...metrics.options].map((option) => option.dataset.unit).filter(Boolean));
  const own = metrics.selectedOptions[0]?.dataset.unit;
  for (const option of units.options) {
    option.hidden = option.disabled = own ? option.value !== own : rates.has(option.value);
  }
  if (units.selectedOptions[0]?.disabled) units.value = [...units.options].find((option) => !option.disabled).value;
}

/** Set a select to a value, which becomes a choice if it is none. */
function pick(control, value) {
  if (![...control.options].some((option) => option.value === value)) control.append(new Option(value, value));
  control.value = value;
}
