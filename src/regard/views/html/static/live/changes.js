/** The changes of the model that the reader has made: heads that are off, and edits of rows. */

/** @typedef {import("./engine.js").ModelEdit} ModelEdit */
/** @typedef {import("./engine.js").Movement} Movement */
/** @typedef {import("../core/attention.js").Edits} Edits */

export class Changes {
  /** @type {Set<() => void>} */
  #listeners = new Set();
  /** @type {readonly ModelEdit[]} */
  list = [];
  /** What they changed; null while nothing is changed, or not yet known. @type {Movement | null} */
  movement = null;
  /** Whether the movement is that of older changes, and the newer is being computed. */
  pending = false;

  /**
   * Calls a listener after each change of the list or of what is known of it.
   * @param {() => void} listener
   * @param {AbortSignal} [signal]
   */
  subscribe(listener, signal) {
    this.#listeners.add(listener);
    signal?.addEventListener("abort", () => this.#listeners.delete(listener));
  }

  /**
   * Whether a head is off.
   * @param {number} attention
   * @param {number} head
   */
  isOff(attention, head) {
    return this.list.some((each) => each.off && each.attention === attention && each.head === head);
  }

  /**
   * The edits that stand for a row: its own, or those of all rows of its head.
   * @param {number} attention
   * @param {number} head
   * @param {number} query
   */
  ofRow(attention, head, query) {
    const own = (/** @type {ModelEdit} */ each) => !each.off && each.attention === attention && each.head === head;
    return this.list.find((each) => own(each) && each.query === query) ?? this.list.find((each) => own(each) && each.query === null) ?? null;
  }

  /**
   * Sets the edits of a row, and of all rows of its head where they hold for all; none takes them back.
   * @param {number} attention
   * @param {number} head
   * @param {number} query
   * @param {Edits} edits
   */
  setEdits(attention, head, query, edits) {
    const old = this.ofRow(attention, head, query);
    const next = Object.keys(edits).length > 0 ? [{ attention, head, query: old ? old.query : query, off: false, edits }] : [];
    const place = old ? this.list.indexOf(old) : this.list.length;
    this.#replace([...this.list.slice(0, place), ...next, ...this.list.slice(place + 1)]);
  }

  /**
   * Lets edits hold for all rows of their head, in place of what other rows have, or for one row alone.
   * @param {ModelEdit} edit of the list
   * @param {number | null} query null: all rows
   */
  setRows(edit, query) {
    const isReplaced = (/** @type {ModelEdit} */ each) => query === null && each !== edit && !each.off && each.attention === edit.attention && each.head === edit.head;
    this.#replace(this.list.filter((each) => !isReplaced(each)).map((each) => (each === edit ? { ...edit, query } : each)));
  }

  /**
   * Switches a head off, or on again.
   * @param {number} attention
   * @param {number} head
   */
  toggleHead(attention, head) {
    const others = this.list.filter((each) => !each.off || each.attention !== attention || each.head !== head);
    const isOff = others.length < this.list.length;
    this.#replace(isOff ? others : [...others, { attention, head, query: null, off: true, edits: {} }]);
  }

  /** @param {ModelEdit} edit */
  remove(edit) {
    this.#replace(this.list.filter((each) => each !== edit));
  }

  clear() {
    this.#replace([]);
  }

  /** The changes that mean the same in any text: they name no query and no key. */
  get forAnyText() {
    return this.list.filter(({ off, query, edits }) => off || (query === null && !edits.scores && !edits.mask && !edits.removedKeys));
  }

  /** Forgets the changes that belonged to the text before. */
  keepForAnyText() {
    const kept = this.forAnyText;
    if (kept.length === this.list.length) return;
    this.list = kept;
    this.#tell();
  }

  /**
   * What the changes did, as the model answered.
   * @param {Movement | null} movement
   */
  answer(movement) {
    this.movement = this.list.length > 0 ? movement : null;
    this.pending = false;
    this.#tell();
  }

  /** @param {readonly ModelEdit[]} list */
  #replace(list) {
    this.list = list;
    this.pending = list.length > 0;
    if (list.length === 0) this.movement = null;
    this.#tell();
  }

  #tell() {
    for (const listener of [...this.#listeners]) listener();
  }
}
