/** The view in which a row can be changed: one number is edited, and all that follows from it moves. */

import { steps } from "../core/attention.js";
import { element } from "../core/dom.js";
import { hasRows, queryPicker, missingRowNotice, setDisabled } from "../row/picker.js";
import { keysByWeight } from "../row/format.js";
import { applyChange } from "./edits.js";
import { rowFields } from "./fields.js";
import { copyLink } from "./link.js";
import { outcome } from "./outcome.js";
import { editTable } from "./table.js";

/** @typedef {import("../core/attention.js").Edits} Edits */
/** @typedef {import("../core/attention.js").Steps} Steps */

/**
 * A row as the model has it and as it is edited: what the parts of this view draw.
 * @typedef {object} EditedRow
 * @property {import("../core/attention.js").Head} head
 * @property {number} query
 * @property {Steps} before
 * @property {Steps} after
 * @property {Edits} edits
 * @property {number[]} order keys by their weight before, the largest first
 * @property {string[]} keys tokens
 * @property {string[]} queries tokens
 * @property {number | null} chosen the key that is chosen
 */

/**
 * What the fields of this view do.
 * @typedef {object} Editing
 * @property {(change: import("./edits.js").Change) => void} preview shows a change at once; it is kept when the reader stops or leaves the field
 * @property {(change: import("./edits.js").Change) => void} keep shows and keeps a change
 * @property {(edits: Edits) => void} replace keeps these edits in place of all
 * @property {() => void} commit keeps what is previewed
 */

/** After these milliseconds without a keystroke a previewed change is kept, as one step of undo. */
const PAUSE = 400;

/** @type {import("../page.js").View} */
export const whatif = {
  name: "whatif",
  title: "What if",
  help: "Change one number of a row, and see at once what follows. What the model computed stands beside it; nothing here changes the model.",
  fits: hasRows,
  mount(root, page) {
    const { data, store } = page;
    /** @type {{edits: Edits, row: string} | null} */
    let draft = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let committing = false;
    /** @type {EditedRow | null} */
    let row = null;

    const rowName = () => `${store.state.attention} ${store.state.head} ${store.state.query}`;

    /** @type {Editing} */
    const editing = {
      preview(change) {
        draft = { edits: applyChange(draft?.edits ?? store.state.edits, change), row: rowName() };
        clearTimeout(timer);
        timer = setTimeout(editing.commit, PAUSE);
        show(false);
      },
      keep(change) {
        editing.preview(change);
        editing.commit();
      },
      replace(edits) {
        forget();
        store.set({ edits });
        show(true);
      },
      commit() {
        const committed = draft;
        forget();
        if (!committed || committed.row !== rowName()) return;
        committing = true;
        store.set({ edits: committed.edits });
        committing = false;
      },
    };

    function forget() {
      clearTimeout(timer);
      draft = null;
    }

    function undo() {
      if (table.restore() || fields.restore()) return;
      editing.commit();
      store.undo();
    }

    const picker = queryPicker(page);
    const undoButton = element("button", { type: "button", class: "undo", onclick: undo, "aria-keyshortcuts": "Control+Z" }, "↶ Undo");
    const resetButton = element("button", { type: "button", class: "reset-all", onclick: () => editing.replace({}) }, "Reset all");
    const link = copyLink(store, editing);
    const fields = rowFields(editing);
    const result = outcome(editing);
    const table = editTable(editing);
    const body = element("div", {}, element("div", { class: "tools" }, undoButton, resetButton, link), fields.root, result.root, table.root);
    const missing = element("div");
    root.append(picker.root, missing, body);
    root.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "z" || event.shiftKey || event.altKey || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      undo();
    });

    /**
     * Draws the numbers.
     * @param {boolean} force whether fields say again what is in the edits, and not what was typed
     */
    function show(force) {
      if (!row) return;
      const edits = draft?.edits ?? store.state.edits;
      const isUnedited = Object.keys(edits).length === 0;
      row = { ...row, edits, after: isUnedited ? row.before : steps(row.head, row.query, edits), chosen: store.state.key };
      setDisabled(undoButton, !store.undoable && draft === null);
      setDisabled(resetButton, isUnedited);
      fields.update(row, force);
      result.update(row);
      table.update(row, force);
    }

    return (state, before) => {
      picker.update(state, before);
      const notice = missingRowNotice(page, state);
      missing.replaceChildren(...(notice ? [notice] : []));
      body.hidden = notice !== null;
      const { attention, head: place, query } = state;
      const head = data.head(attention, place);
      const computed = data.row(attention, place, query);
      if (!head || !computed) {
        row = null;
        return;
      }
      const isNewRow = !row || !before || before.attention !== attention || before.head !== place || before.query !== query;
      if (isNewRow) {
        if (draft && draft.row !== rowName()) forget();
        const order = keysByWeight(computed.weights);
        row = { head, query, before: computed, after: computed, edits: {}, order, chosen: state.key, ...data.tokens(attention) };
        table.start(row);
      } else if (!committing && before?.edits !== state.edits) forget();
      show(isNewRow || (!committing && before?.edits !== state.edits));
    };
  },
};
