/** The rows of objectives: a latency, a statistic and a limit each. */

const at = (id) => document.getElementById(id);

/** Give life to the rows of objectives; return what reads and writes them. `usual` are objectives for an empty form. */
export function objectiveRows(usual, changed) {
  const place = at("slo-rows");
  const add = (written = "") => {
    const [, metric, stat, limit, unit] =
      written.match(/^(?:(\w+)\.)?(mean|p[\d.]+)\s*=\s*([\d.eE+-]+)\s*(s|ms|us)$/) ?? [];
    const row = at("slo-row").content.firstElementChild.cloneNode(true);
    const [metrics, stats, number, units] = row.querySelectorAll("select, input");
    if (stat) {
      pick(metrics, metric ?? "ttft");
      pick(stats, stat);
      pick(units, unit);
      number.value = limit;
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
          const [metric, stat, limit, unit] = [...row.querySelectorAll("select, input")].map(
            (control) => control.value,
          );
          return limit === "" ? "" : `${metric}.${stat}=${limit}${unit}`;
        })
        .filter(Boolean),
    write: (values) => {
      place.replaceChildren();
      const given = values.flatMap((value) => value.split(",")).filter(Boolean);
      for (const written of given.length ? given : usual) add(written);
    },
  };
}

/** Set a select to a value, which becomes a choice if it is none. */
function pick(control, value) {
  if (![...control.options].some((option) => option.value === value)) control.append(new Option(value, value));
  control.value = value;
}
