/**
 * The state of a form in the address of the page, so that a link brings back every control.
 *
 * A control takes part if it has a name and is not disabled. Values that equal the default in the HTML are left out.
 * Names with several values, such as rows that users add, are read and written by a list of the page; a list whose name
 * ends in a dot stands for all names that begin so, and reads and writes pairs of name and value.
 */

/**
 * Connect a form with the address.
 *
 * @param {HTMLFormElement} form The form.
 * @param {Object<string, {read: () => Array, write: (values: Array) => void}>} lists What reads and writes a name with
 *   several values. A control whose name is a list takes no part by itself.
 * @param {string[]} kept Names of the address that belong to the page and not to the form.
 * @param {Object<string, string>} inAddress Names of the address for controls whose own name belongs to the page.
 */
export function urlState(form, { lists = {}, kept = [], inAddress = {} } = {}) {
  const controls = () =>
    [...form.elements].filter((control) => control.name && !(control.name in lists) && !(`${control.name}.` in lists));

  /** Return the query of the form, without defaults. */
  function query() {
    const found = new URLSearchParams();
    for (const control of controls().filter((each) => !each.disabled)) {
      if (control.type === "radio" || control.type === "checkbox") {
        if (control.checked !== control.defaultChecked && (control.checked || control.type === "checkbox")) {
          found.append(control.name, control.checked ? control.value : "");
        }
      } else if (control.value !== byDefault(control)) {
        found.append(control.name, control.value);
      }
    }
    for (const [name, list] of Object.entries(lists)) {
      for (const value of list.read()) found.append(...(name.endsWith(".") ? value : [name, value]));
    }
    return found;
  }

  /** Return the part of the address that belongs to the form, by the names of its controls. */
  function ofAddress() {
    const given = new URLSearchParams(window.location.search);
    for (const [name, other] of Object.entries(inAddress)) {
      const values = [...given.getAll(name).filter((value) => !isJob(value)), ...given.getAll(other)];
      given.delete(name);
      given.delete(other);
      for (const value of values) given.append(name, value);
    }
    return given;
  }

  /**
   * Set every control from a query; what the query does not name gets its default. From then on the form takes input:
   * what users wrote before would be lost.
   */
  function restore(text) {
    const given = text === undefined ? ofAddress() : new URLSearchParams(text);
    for (const control of controls()) {
      const values = given.getAll(control.name);
      if (control.type === "radio") {
        control.checked = values.length ? values.includes(control.value) : control.defaultChecked;
      } else if (control.type === "checkbox") {
        control.checked = values.includes(control.value) || (control.defaultChecked && !values.includes(""));
      } else {
        control.value = values.length ? values[0] : byDefault(control);
        if (values.length && control.tagName === "SELECT" && control.value !== values[0]) {
          control.append(new Option(values[0], values[0]));
          control.value = values[0];
        }
      }
    }
    for (const [name, list] of Object.entries(lists)) {
      list.write(name.endsWith(".") ? [...given].filter(([other]) => other.startsWith(name)) : given.getAll(name));
    }
    form.inert = false;
  }

  /** Write the state into the address; `extra` are values of the page. A new entry of the history only if `push`. */
  function save(extra = {}, { push = false } = {}) {
    const found = query();
    for (const [name, other] of Object.entries(inAddress)) {
      for (const value of found.getAll(name)) found.append(other, value);
      found.delete(name);
    }
    const before = new URLSearchParams(window.location.search);
    for (const name of kept) {
      const value = name in extra ? extra[name] : before.get(name);
      if (value && !(name in inAddress && !isJob(value))) found.set(name, value);
    }
    const text = found.toString();
    const address = `${window.location.pathname}${text ? `?${text}` : ""}${window.location.hash}`;
    window.history[push ? "pushState" : "replaceState"](null, "", address);
  }

  return { query, restore, save };
}

/** Return whether a value of the address is the id of a job, and not the size of a job of a network. */
export function isJob(value) {
  return /^[0-9a-f]{16}$/.test(value ?? "");
}

function byDefault(control) {
  if (control.tagName !== "SELECT") return control.defaultValue;
  return ([...control.options].find((option) => option.defaultSelected) ?? control.options[0])?.value ?? "";
}
