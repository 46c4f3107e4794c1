/** The rows of objectives: a latency, a statistic, a limit and a condition on the lengths of requests each. */

/** An objective: metric, condition, statistic, limit and unit. */
const WRITTEN = /^(?:(\w+)(?:\[([^[\]]*)\])?\.)?(mean|p[\d.]+)\s*=\s*([\d.eE+-]+)\s*(s|ms|us|min|h)$/;

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
    const row = at("slo-row").content.firstElementChild.cloneNode(true);
    const [metrics, stats, number, units, lengths] = row.querySelectorAll("select, input");
    limitMetrics(row);
    if (stat) {
      pick(metrics, metric ?? (only || "ttft"));
      pick(stats, stat);
      pick(units, unit);
      number.value = limit;
      lengths.value = condition ?? "";
    }
    row.querySelector("button").addEventListener("click", () => {
      row.remove();
      changed();
      (place.querySelector(".slo select") ?? at("add-slo")).focus();
    });
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

/** Set a select to a value, which becomes a choice if it is none. */
function pick(control, value) {
  if (![...control.options].some((option) => option.value === value)) control.append(new Option(value, value));
  control.value = value;
}
