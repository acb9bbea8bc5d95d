/** The reader's choices: one state that every view reads, kept in the page's link, with undo. */

/** @typedef {import("./attention.js").Edits} Edits */

/**
 * @typedef {object} State
 * @property {string} view
 * @property {number} attention its place in the page
 * @property {number} head its place among the attention's
 * @property {number[]} extraHeads further heads of the same attention, in colours
 * @property {number} query
 * @property {number | null} key
 * @property {number} threshold weights below it are not drawn, 0 to 1
 * @property {[number, number, number, number] | null} viewport of the map: first query, query behind the last, first key, key behind the last
 * @property {Edits} edits of the row that is chosen
 * @property {number} word of the context
 */

/** @typedef {(state: State, before: State) => void} Listener */

/** The most changes that can be undone. */
const MAX_UNDO = 200;

export class Store {
  /** @type {Set<Listener>} */
  #listeners = new Set();
  /** @type {State[]} */
  #past = [];

  /** @param {State} first */
  constructor(first) {
    this.first = first;
    this.state = first;
  }

  /**
   * Changes something. Another row forgets the edits of the one before.
   * @param {Partial<State>} change
   */
  set(change) {
    const before = this.state;
    const next = { ...before, ...change };
    const rowChanged = ["attention", "head", "query"].some((name) => next[/** @type {"head"} */ (name)] !== before[/** @type {"head"} */ (name)]);
    if (rowChanged && !change.edits) next.edits = {};
    if (next.attention !== before.attention && !change.extraHeads) next.extraHeads = [];
    if (isEqual(next, before)) return;
    if (!isEqual(next.edits, before.edits)) this.#past = [...this.#past, before].slice(-MAX_UNDO);
    this.#go(next);
  }

  /** Whether there is an edit to undo. */
  get undoable() {
    return this.#past.length > 0;
  }

  /** Takes back the last edit. */
  undo() {
    const last = this.#past.pop();
    if (!last) return;
    const { attention, head, query, edits } = last;
    const rowChanged = attention === this.state.attention ? {} : { extraHeads: last.extraHeads, viewport: last.viewport, key: last.key };
    this.#go({ ...this.state, attention, head, query, edits, ...rowChanged });
  }

  /**
   * Calls a listener after each change.
   * @param {Listener} listener
   */
  subscribe(listener) {
    this.#listeners.add(listener);
  }

  /** The link's last part, which holds what differs from the beginning. */
  get link() {
    const changes = Object.entries(this.state).filter(([name, value]) => !isEqual(value, this.first[/** @type {keyof State} */ (name)]));
    return changes.length ? `#${encodeURIComponent(JSON.stringify(Object.fromEntries(changes)))}` : "#";
  }

  /**
   * Goes where a link leads. What does not fit is left out.
   * @param {string} link
   * @param {(state: State) => State} fit makes a state one that this page can show
   */
  applyLink(link, fit) {
    /** @type {Partial<State>} */
    let linkState = {};
    try {
      linkState = JSON.parse(decodeURIComponent(link.replace(/^#/, "")) || "{}");
    } catch {
      // a link from another site
    }
    const next = fit({ ...this.first, ...(linkState && typeof linkState === "object" ? linkState : {}) });
    if (!isEqual(next, this.state)) this.#go(next);
  }

  /**
   * Takes over the state that the reader had on another page, before anything listens.
   * @param {State} state
   */
  moveTo(state) {
    this.state = state;
  }

  /** @param {State} next */
  #go(next) {
    const before = this.state;
    this.state = next;
    for (const listener of this.#listeners) listener(next, before);
  }
}

/**
 * @param {unknown} a
 * @param {unknown} b
 */
export function isEqual(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}
