/** A form in the history of the browser: it is emptied by its reset button, and restored when users go back. */

/**
 * Connect a form with the history.
 *
 * @param {HTMLFormElement} form The form.
 * @param {{restore: (text?: string) => void, save: (extra: Object<string, string>) => void}} state What `urlState`
 *   returns for the form.
 * @param {{kept: string[], follow: () => void, onChange: () => void}} page Names of the address that belong to the page
 *   and that a reset removes; what makes further controls follow the restored form; what runs after a change.
 * @returns {(text?: string) => void} What restores the form from a query, or from the address where none is given.
 */
export function formHistory(form, state, page) {
  const restore = (text) => {
    state.restore(text);
    page.follow();
  };
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    restore("");
    state.save(Object.fromEntries(page.kept.map((name) => [name, ""])));
    page.onChange();
  });
  window.addEventListener("popstate", () => {
    restore();
    page.onChange();
  });
  return restore;
}
