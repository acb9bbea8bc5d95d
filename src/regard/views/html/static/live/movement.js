/** What the changes of a model do: the list of them, how far the text's vector moves, and which later weights change most. */

import { changeGrid } from "./grid.js";
import { numberText, element, percentText, token, visible } from "../core/dom.js";
import { tokenName } from "../next/candidates.js";
import { describeEdits } from "../whatif/edits.js";

/** @typedef {import("./engine.js").ModelEdit} ModelEdit */
/** @typedef {import("./engine.js").Movement} Movement */
/** @typedef {import("../page.js").Page} Page */

/** The next tokens that are listed here; the view Next tokens has all. */
const LISTED_TOKENS = 8;

/** @param {Page} page with a model */
export function throughModel(page) {
  const { store } = page;
  const live = /** @type {import("./engine.js").Live} */ (page.live);
  const { changes } = live;
  const canSwitchOff = live.engine.model.edits.includes("off");
  const off = element("button", { type: "button", class: "head-off", onclick: () => changes.toggleHead(store.state.attention, store.state.head) });
  const allRows = element("input", { type: "checkbox", onchange: () => setAllRows(allRows.checked) });
  const allRowsLabel = element("label", { class: "all-rows" }, allRows, " these edits in every row of the head");
  const clear = element("button", { type: "button", class: "clear-changes", onclick: () => changes.clear() }, "As the model is");
  const list = element("ul", { class: "changes" });
  const outcome = element("div", { class: "moved", "aria-live": "polite" });
  const grid = changeGrid(page);
  const root = element(
    "section",
    { class: "through-model", "aria-label": "Through the model" },
    element("h2", {}, "Through the model"),
    element("div", { class: "tools" }, canSwitchOff && off, allRowsLabel, clear),
    list,
    outcome,
    grid.root,
  );
  const summary = element("button", { type: "button", class: "moved-summary", onclick: () => root.scrollIntoView() });
  let listed = "";

  /** @param {boolean} isAll */
  function setAllRows(isAll) {
    const { attention, head, query } = store.state;
    const edit = changes.ofRow(attention, head, query);
    if (edit) changes.setRows(edit, isAll ? null : query);
  }

  function update() {
    const { attention, head, query } = store.state;
    const isOff = changes.isOff(attention, head);
    const place = `head ${page.data.headFacts(attention, head).number} of layer ${page.data.attention(attention).layer}`;
    off.textContent = isOff ? `Switch ${place} on again` : `Switch ${place} off`;
    const edit = changes.ofRow(attention, head, query);
    allRows.checked = edit?.query === null;
    allRows.disabled = edit === null;
    clear.hidden = changes.list.length === 0;
    const key = JSON.stringify(changes.list);
    if (key !== listed) list.replaceChildren(...changes.list.map(changeItem));
    listed = key;
    root.classList.toggle("pending", changes.pending);
    outcome.replaceChildren(...outcomeLines(live, changes.list.length > 0));
    grid.update(changes.movement);
    summary.hidden = changes.list.length === 0;
    summary.textContent = `Through the model: ${summaryText(live)} ↓`;
  }

  /** @param {ModelEdit} edit */
  function changeItem(edit) {
    const where = { attention: edit.attention, head: edit.head, query: edit.query ?? store.state.query, key: null };
    return element(
      "li",
      { "data-off": edit.off || null },
      element("button", { type: "button", class: "plain go", title: "Go there", onclick: () => store.set({ ...where, edits: edit.off ? {} : edit.edits }) }, placeText(page, edit)),
      ...changeWords(page, edit),
      " ",
      element("button", { type: "button", class: "remove", "aria-label": `Take back: ${placeText(page, edit)}`, onclick: () => changes.remove(edit) }, "×"),
    );
  }
  return { root, summary, update };
}

/** What became of the end of the model, in a line. @param {import("./engine.js").Live} live */
function summaryText({ answer, changes: { movement, pending } }) {
  if (!movement) return pending ? "computing …" : "no answer";
  const { cosine, similarity, next } = movement;
  const [before, after] = [next?.before[0], next?.after[0]];
  return [
    cosine !== null && `cosine with itself before ${numberText(cosine)}`,
    similarity !== null && answer.similarity !== null && `similarity ${numberText(answer.similarity)} → ${numberText(similarity)}`,
    before && after && `next ${visible(before.token)} ${percentText(before.probability)} → ${visible(after.token)} ${percentText(after.probability)}`,
  ]
    .filter((part) => part)
    .join(" · ");
}

/**
 * @param {Page} page
 * @param {ModelEdit} edit
 */
function placeText({ data }, { attention, head, query, off }) {
  const row = off ? "" : query === null ? ", every row" : `, row ${query}`;
  return `layer ${data.attention(attention).layer}, head ${data.headFacts(attention, head).number}${row}`;
}

/**
 * @param {Page} page
 * @param {ModelEdit} edit
 * @returns {(Node | string)[]}
 */
function changeWords({ data }, { attention, head, query, off, edits }) {
  if (off) return [": off, its output is 0"];
  const decoded = data.head(attention, head);
  const row = data.row(attention, head, query ?? 0);
  if (!decoded || !row) return [": edited"];
  const { keys } = data.tokens(attention);
  return describeEdits(edits, decoded, query ?? 0, row.scores).flatMap(({ undoChange: { kind }, key, before, after }, i) => [
    i === 0 ? ": " : "; ",
    ...(key === null ? [`${kind} `] : [kind === "score" ? "score of " : "", token(keys[key] ?? ""), " "]),
    query === null && key !== null ? after : `${before} → ${after}`,
  ]);
}

/**
 * What became of the end of the model.
 * @param {import("./engine.js").Live} live
 * @param {boolean} hasChanges
 */
function outcomeLines({ answer, changes: { movement, pending } }, hasChanges) {
  if (!hasChanges) return [element("p", { class: "quiet" }, "Nothing is changed. Forbid a key, set a score or the temperature, or switch the head off: what all later layers make of it stands here.")];
  if (!movement) return [element("p", { class: "quiet" }, pending ? "Computing …" : "The model gave no answer; the line below the text says why.")];
  const { cosine, distance, similarity, next, notes } = movement;
  const value = (/** @type {string} */ name, /** @type {number} */ number) => element("strong", { "data-fact": name, "data-value": number }, numberText(number));
  return [
    cosine !== null && element("p", {}, "The text’s vector: cosine ", value("cosine", cosine), " with itself before", ...(distance === null ? [] : [", distance ", value("distance", distance)]), "."),
    similarity !== null && answer.similarity !== null && element("p", {}, "Similarity with the second text: ", value("similarity-before", answer.similarity), " → ", value("similarity", similarity), "."),
    next && nextTable(next),
    ...notes.map((note) => element("p", { class: "doubt" }, visible(note))),
  ].filter((part) => part instanceof Node);
}

/**
 * The likeliest next tokens before and after.
 * @param {NonNullable<Movement["next"]>} next
 */
function nextTable({ before, after }) {
  const old = new Map(before.map((each) => [each.id, each]));
  const now = new Map(after.map((each) => [each.id, each]));
  const largest = (/** @type {number} */ id) => Math.max(old.get(id)?.probability ?? 0, now.get(id)?.probability ?? 0);
  const ids = [...new Set([...old.keys(), ...now.keys()])].sort((a, b) => largest(b) - largest(a)).slice(0, LISTED_TOKENS);
  const share = (/** @type {import("./engine.js").NextToken | undefined} */ each) => element("td", { "data-value": each?.probability }, each ? percentText(each.probability) : "–");
  const rows = ids.map((id) => element("tr", {}, element("th", { scope: "row" }, ...tokenName((now.get(id) ?? old.get(id))?.token ?? "")), share(old.get(id)), share(now.get(id))));
  const title = (/** @type {string} */ text) => element("th", { scope: "col" }, text);
  return element("table", { class: "next-change" }, element("thead", {}, element("tr", {}, title("Next token"), title("before"), title("after"))), element("tbody", {}, ...rows));
}
