/** The question of a form as JSON, and what reads and writes the controls that hold several values. */

/** Return the JSON of a question: what `found` holds, and the controls of the form that differ from their defaults. */
export function asQuestion(form, found) {
  const question = {};
  const put = (name, value) => {
    const [group, rest] = name.split(/\.(.*)/s);
    if (rest) (question[group] ??= {})[rest] = value;
    else question[name] = value;
  };
  for (const [name, value] of Object.entries(found)) if (value.length) put(name, value);
  for (const control of form.elements) {
    const value = control.value?.trim?.() ?? "";
    if (!control.name || control.disabled || control.name in found || value === "") continue;
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
export function flat(question, prefix = "") {
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
export function severalValues(form) {
  const found = {};
  for (const control of form.elements) {
    const kind = control.dataset.kind;
    if (kind === "list" || kind === "numbers") {
      found[control.name] = {
        read: () => (control.disabled ? [] : parts(control.value)),
        write: (values) => {
          control.value = values.join(",");
        },
      };
    } else if (kind === "keys" && control.name === "fixed") {
      found["fixed."] = {
        read: () =>
          Object.entries(control.disabled ? {} : keys(control.value)).map(([name, value]) => [
            `fixed.${name}`,
            asText(value),
          ]),
        write: (pairs) => {
          control.value = pairs.map(([name, value]) => `${name.slice("fixed.".length)}=${value}`).join("\n");
        },
      };
    } else if (kind === "keys") {
      found[control.name] = {
        read: () => (!control.disabled && control.value.trim() ? [JSON.stringify(keys(control.value))] : []),
        write: ([value]) => {
          control.value = value
            ? Object.entries(JSON.parse(value))
                .map(([name, part]) => `${name}=${asText(part)}`)
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

/** Return a value as the text of a control. */
export function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
