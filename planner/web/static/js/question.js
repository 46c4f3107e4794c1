/** The form of a question to the planner: controls, presets, and its spellings as a query and as JSON. */

import { call, query } from "/static/js/api.js";
import { combobox, matches } from "/static/js/combobox.js";
import { announce, button, debounced, el, fill } from "/static/js/parts.js";
import { upload, uploadsOf } from "/static/js/uploads.js";
import { urlState } from "/static/js/url_state.js";
import { counted, dollars, gigabytes, grouped, si } from "/static/js/words.js";

/** Starting points for users, which they change: a workload and its objectives. */
const PRESETS = [
  { name: "Chat", workload: "chat", slo: ["ttft.p99=2s", "tpot.p95=60ms"] },
  { name: "Code", workload: "azure-code", slo: ["ttft.p95=1s", "tpot.p95=40ms"] },
  { name: "Reasoning", workload: "reasoning", slo: ["ttft.p95=3s", "tpot.p95=40ms"] },
  { name: "Agent", workload: "summarization", slo: ["e2e.p95=20s"] },
];

const at = (id) => document.getElementById(id);

/**
 * Give life to the form of `_question.html`.
 *
 * @param {{onChange: () => void, kept?: string[]}} page What runs after a change; names of the address that are not the
 *   form's.
 */
export function questionForm({ onChange, kept = [] }) {
  const form = at("question");
  const models = call("/models")
    .then((found) => found.items)
    .catch(() => []);
  const hardware = call("/hardware")
    .then((found) => found.items)
    .catch(() => []);
  const changed = debounced(() => {
    state.save();
    onChange();
  }, 120);

  const slo = sloRows(changed);
  const chips = hardwareChips(hardware, changed);
  const lists = { ...severalValues(form), slo, hardware: chips, model: modelField(models, changed) };
  const state = urlState(form, { lists, kept });
  const workloads = workloadField(changed);
  lengths("input", changed);
  lengths("output", changed);
  pairSlider(at("confidence-slider"), at("confidence"), changed);
  loadFields();
  fill(
    at("presets"),
    PRESETS.map((preset) =>
      button(
        preset.name,
        () => {
          at("workload").value = preset.workload;
          at("workload").dispatchEvent(new Event("change", { bubbles: true }));
          slo.write(preset.slo);
          announce(`Preset ${preset.name}`);
          changed();
        },
        { class: "small" },
      ),
    ),
  );

  const follow = () => {
    workloads.note();
    form.dispatchEvent(new Event("restored"));
    loadFields();
  };
  const restore = (text) => {
    state.restore(text);
    follow();
  };
  form.addEventListener("input", changed);
  form.addEventListener("change", () => {
    loadFields();
    changed();
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    restore("");
    state.save(Object.fromEntries(kept.map((name) => [name, ""])));
    onChange();
  });
  window.addEventListener("popstate", () => {
    restore();
    onChange();
  });
  restore();

  return {
    form,
    state,
    /** Return the question as the JSON of a scenario file. */
    question: () =>
      asQuestion(form, { slo: slo.read(), hardware: chips.read().join(","), model: at("model").value.trim() }),
    /** Return the question as the text of a query. */
    asQuery: () => state.query().toString(),
    /** Return whether the question names all that a plan needs. */
    complete: () => at("model").value.trim() !== "" && chips.read().length > 0 && slo.read().length > 0,
    /** Change keys of the question, as a suggestion of a refused answer does. */
    change: (changes) => {
      applyChanges(changes, { slo, chips });
      changed();
    },
    /** Set the form from a question, as a link or a finished job holds it. */
    write: (question) => restore(query(flat(question))),
  };
}

function asQuestion(form, found) {
  const question = {};
  const put = (name, value) => {
    const [group, rest] = name.split(/\.(.*)/s);
    if (rest) (question[group] ??= {})[rest] = value;
    else question[name] = value;
  };
  for (const [name, value] of Object.entries(found)) if (value.length) put(name, value);
  for (const control of form.elements) {
    const value = control.value?.trim?.() ?? "";
    if (!control.name || control.name in found || value === "") continue;
    if (control.type === "checkbox") {
      if (control.checked) put(control.name, true);
    } else if (value === fixedDefault(control)) {
      continue;
    } else if (control.type === "number") {
      put(control.name, Number(value));
    } else if (control.dataset.kind === "list") {
      put(control.name, parts(value));
    } else if (control.dataset.kind === "numbers") {
      put(control.name, parts(value).map(Number));
    } else if (control.dataset.kind === "keys") {
      put(control.name, keys(value));
    } else {
      put(control.name, value);
    }
  }
  return question;
}

function fixedDefault(control) {
  if (control.tagName === "SELECT") return [...control.options].find((option) => option.defaultSelected)?.value;
  return control.defaultValue === "" ? null : control.defaultValue;
}

/** Return the values of lines of KEY=VALUE; numbers, true, false and JSON are read as such. */
function keys(lines) {
  const found = {};
  for (const line of lines.split(/\n|,(?=\s*[\w.]+\s*=)/)) {
    const [name, value] = line.split(/=(.*)/s).map((part) => part?.trim());
    if (!name || value === undefined) continue;
    try {
      found[name] = JSON.parse(value);
    } catch {
      found[name] = value;
    }
  }
  return found;
}

/** Return a question with dotted names, as a query spells it; the keys of owned hardware are one JSON text. */
function flat(question, prefix = "") {
  const found = {};
  for (const [name, value] of Object.entries(question)) {
    const block = value !== null && typeof value === "object" && !Array.isArray(value);
    if (block && name === "owned") found[prefix + name] = JSON.stringify(value);
    else if (block) Object.assign(found, flat(value, `${prefix}${name}.`));
    else found[prefix + name] = value;
  }
  return found;
}

/** Return what reads and writes the controls that hold several values: texts with commas, and lines of KEY=VALUE. */
function severalValues(form) {
  const found = {};
  for (const control of form.elements) {
    const kind = control.dataset.kind;
    if (kind === "list" || kind === "numbers") {
      found[control.name] = {
        read: () => parts(control.value),
        write: (values) => {
          control.value = values.join(",");
        },
      };
    } else if (kind === "keys" && control.name === "fixed") {
      found["fixed."] = {
        read: () => Object.entries(keys(control.value)).map(([name, value]) => [`fixed.${name}`, text(value)]),
        write: (pairs) => {
          control.value = pairs.map(([name, value]) => `${name.slice("fixed.".length)}=${value}`).join("\n");
        },
      };
    } else if (kind === "keys") {
      found[control.name] = {
        read: () => (control.value.trim() ? [JSON.stringify(keys(control.value))] : []),
        write: ([value]) => {
          control.value = value
            ? Object.entries(JSON.parse(value))
                .map(([name, part]) => `${name}=${text(part)}`)
                .join("\n")
            : "";
        },
      };
    }
  }
  return found;
}

function parts(value) {
  return value
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function applyChanges(changes, { slo, chips }) {
  for (const [name, value] of Object.entries(changes)) {
    if (name === "slo") slo.write(value);
    else if (name === "hardware") chips.write([value]);
    else {
      const control = at("question").elements[name];
      if (!control) continue;
      control.value =
        name === "fixed"
          ? Object.entries(value)
              .map(([key, part]) => `${key}=${text(part)}`)
              .join("\n")
          : Array.isArray(value)
            ? value.join(",")
            : value;
      control.closest("details")?.setAttribute("open", "");
      control.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }
}

function sloRows(changed) {
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
      for (const written of given.length ? given : PRESETS[0].slo) add(written);
    },
  };
}

/** Set a select to a value, which becomes a choice if it is none. */
function pick(control, value) {
  if (![...control.options].some((option) => option.value === value)) control.append(new Option(value, value));
  control.value = value;
}

function hardwareChips(loading, changed) {
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

function modelField(loading, changed) {
  const input = at("model");
  const note = async () => {
    const name = input.value.trim();
    if (name.startsWith("upload:")) {
      const file = await uploadName(name);
      if (input.value.trim() === name) at("model-note").textContent = `Your file ${file}.`;
      return;
    }
    const known = (await loading).find((item) => item.name === name || item.hf_id === name);
    at("model-note").textContent = known
      ? describe(known)
      : name
        ? "Not in the catalog. Upload or paste its config.json."
        : "";
  };
  const take = (value) => {
    input.value = value;
    note();
    changed();
  };
  const box = document.createElement("span");
  input.replaceWith(box);
  box.replaceWith(
    combobox(
      input,
      async (typed) =>
        (await loading)
          .filter((item) => matches(`${item.name} ${item.hf_id} ${item.other_names.join(" ")}`, typed))
          .map((item) => ({ value: item.name, text: item.name, detail: describe(item) })),
      take,
    ),
  );
  input.addEventListener("change", note);
  uploadsOf(at("model-file"), take);
  at("paste-config").addEventListener("click", () => {
    const open = at("pasted").hidden;
    at("pasted").hidden = !open;
    at("paste-config").setAttribute("aria-expanded", String(open));
    if (open) at("config-text").focus();
  });
  at("use-config").addEventListener("click", async () => {
    const place = at("pasted");
    place.querySelector(":scope > .problem")?.remove();
    try {
      JSON.parse(at("config-text").value);
    } catch (error) {
      place.append(problemNote(new Error(`This text is not JSON: ${error.message}`)));
      return;
    }
    const done = await upload(new File([at("config-text").value], "config.json", { type: "application/json" }), place);
    if (done) take(done.upload);
  });
  return {
    read: () => (input.value.trim() ? [input.value.trim()] : []),
    write: (values) => {
      input.value = values[0] ?? "";
      note();
    },
  };
}

function describe(model) {
  const size = model.params ? `${si(model.params, "").replace(" G", " B").replace(" T", " T")} parameters` : "";
  const active =
    model.active_params && model.active_params < 0.95 * model.params
      ? `${si(model.active_params, "").replace(" G", " B")} active`
      : "";
  const context = model.max_position_tokens ? `${grouped(model.max_position_tokens)} tokens` : "";
  return [size, active, model.weight_dtype, context].filter(Boolean).join(" · ");
}

function workloadField(changed) {
  const control = at("workload");
  let items = [];
  call("/workloads")
    .then((found) => {
      items = found.items;
      const own = new Set([...control.options].map((option) => option.value));
      for (const item of items) if (!own.has(item.name)) control.append(new Option(item.name, item.name));
      note();
    })
    .catch(() => {}); // the form works without the list
  const note = () => {
    const item = items.find((other) => other.name === control.value);
    at("workload-note").textContent = item
      ? `Mean ${grouped(item.input_tokens_mean)} tokens in, ${grouped(item.output_tokens_mean)} out. ${item.source}`
      : control.value.startsWith("upload:")
        ? "Your own trace."
        : "";
    for (const option of control.options) {
      // a link names an upload by its content
      if (option.value.startsWith("upload:") && option.text === option.value)
        uploadName(option.value).then((name) => {
          option.text = name;
        });
    }
  };
  control.addEventListener("change", note);
  uploadsOf(at("trace-file"), (name, done) => {
    control.append(new Option(done.name, name));
    control.value = name;
    note();
    changed();
  });
  return { note };
}

/** Return the name that an uploaded file had. */
async function uploadName(reference) {
  try {
    return (await call(`/uploads/${encodeURIComponent(reference)}`)).name;
  } catch {
    return `${reference.slice(0, 15)}… (not on this server)`;
  }
}

/** Keep a logarithmic slider and the number of tokens in step; an empty number stands for the workload's lengths. */
function lengths(kind, changed) {
  const slider = at(`${kind}-slider`);
  const number = at(`${kind}_tokens`);
  const follow = () => {
    if (number.value) slider.value = Math.log2(Number(number.value));
  };
  slider.addEventListener("input", () => {
    const tokens = 2 ** Number(slider.value);
    number.value = String(
      Math.round(tokens / 2 ** Math.max(0, Math.floor(Math.log2(tokens)) - 4)) *
        2 ** Math.max(0, Math.floor(Math.log2(tokens)) - 4),
    );
    changed();
  });
  number.addEventListener("input", follow);
  at("question").addEventListener("restored", follow);
}

function pairSlider(slider, number, changed) {
  slider.addEventListener("input", () => {
    number.value = slider.value;
    changed();
  });
  number.addEventListener("input", () => {
    slider.value = number.value;
  });
  at("question").addEventListener("restored", () => {
    slider.value = number.value;
  });
}

function loadFields() {
  const [rate, users] = [at("rate"), at("users")];
  if (document.activeElement === rate && rate.value) users.value = "";
  else if (document.activeElement === users && users.value) rate.value = "";
  at("think-field").hidden = users.value === "";
}
