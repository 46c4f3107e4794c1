/** The hardware of a question: a search field, and a chip for each choice. */

import { combobox, matches } from "/static/js/combobox.js";
import { announce, button, el, fill } from "/static/js/parts.js";
import { counted, dollars, gigabytes, grouped, si } from "/static/js/words.js";

const at = (id) => document.getElementById(id);

/** Give life to the hardware that one chooses from; return what reads and writes it. */
export function hardwareChips(loading, changed) {
  const place = at("hardware-chips");
  const input = at("hardware-search");
  let chosen = [];
  const show = () => {
    fill(
      place,
      chosen.map((name) =>
        el(
          "li",
          { class: "chip" },
          name,
          button(
            "×",
            () => {
              chosen = chosen.filter((other) => other !== name);
              show();
              changed();
              input.focus();
            },
            { "aria-label": `Remove ${name}` },
          ),
        ),
      ),
    );
    place.hidden = chosen.length === 0;
  };
  const add = (name) => {
    if (!name) return;
    chosen =
      name === "any"
        ? ["any"]
        : [
            ...new Set([
              ...chosen.filter((other) => other !== "any"),
              ...name
                .split(",")
                .map((part) => part.trim())
                .filter(Boolean),
            ]),
          ];
    input.value = "";
    show();
    announce(`${name} added`);
    changed();
  };
  const find = async (typed) => {
    const items = await loading;
    const [, nodes, name, count] = typed.toLowerCase().match(/^(?:(\d+)[x*])?([a-z][\w-]*?)?(?:x(\d*))?$/) ?? [];
    const shown = [];
    if ("any".startsWith(typed.toLowerCase()))
      shown.push({ value: "any", text: "any", detail: "every GPU of the catalog with a price" });
    for (const item of items.filter((item) => matches(`${item.name} ${item.full_name} ${item.kind}`, name ?? typed))) {
      const sizes = count ? [Number(count)] : typed ? item.node_sizes : [1];
      for (const n of sizes) {
        const whole = `${nodes ? `${nodes}x` : ""}${item.name}x${n}`;
        shown.push({ value: whole, text: whole, detail: detail(item, n * Number(nodes || 1)) });
      }
    }
    return shown;
  };
  const box = document.createElement("span");
  input.replaceWith(box);
  box.replaceWith(combobox(input, find, add));
  input.addEventListener("blur", () => {
    if (input.value.trim()) add(input.value.trim());
  });
  loading.then((items) => {
    at("hardware-note").textContent = items.length
      ? `${counted(items.length, "accelerator")} in the catalog, with specifications and dated prices.`
      : "";
  });
  return {
    read: () => (chosen.length ? [chosen.join(",")] : []),
    write: (values) => {
      chosen = values
        .flatMap((value) => value.split(","))
        .map((part) => part.trim())
        .filter(Boolean);
      show();
    },
  };
}

function detail(item, count) {
  const parts = [gigabytes(item.memory_bytes), si(item.memory_bytes_per_s, "B/s")];
  if (item.tdp_w) parts.push(`${grouped(item.tdp_w)} W`);
  parts.push(item.price ? `${dollars(item.price.usd_per_hour * count)}/h, ${item.price.date}` : "no price");
  parts.push(
    { measured: "measured", borrowed: `times borrowed from ${item.calibrated_on}`, none: "roofline only" }[
      item.calibrated
    ],
  );
  return parts.join(" · ");
}
