/** The view What if where the model is there: the edits of a row go through all that follows it. */

import { throughModel } from "./movement.js";
import { element } from "../core/dom.js";
import { isEqual } from "../core/store.js";
import { whatif } from "../whatif/whatif.js";

/** @type {import("../page.js").View} */
export const liveWhatif = {
  ...whatif,
  help: "Change a number of a row, or switch the head off: what follows in the row stands here, and what follows in all later layers and at the end stands below “Through the model”.",
  single: true,
  mount(root, page) {
    const changes = page.live?.changes;
    const own = element("div", { class: "own-row" });
    if (!changes) {
      root.append(own);
      return whatif.mount(own, page);
    }
    const panel = throughModel(page);
    root.append(element("div", { class: "through" }, own, panel.root));
    const update = whatif.mount(own, page);
    own.append(panel.summary);
    const link = own.querySelector(".link-part");
    // A link holds choices and edits and no text: elsewhere it would open them on the text that the page was made with.
    link?.toggleAttribute("hidden", page.live?.question.texts[0] !== page.live?.engine.model.texts[0]);
    const { store } = page;

    /** The edits of the row that is shown are those of the list of changes. */
    function followList() {
      const { view, attention, head, query, edits } = store.state;
      const listed = changes?.ofRow(attention, head, query)?.edits ?? {};
      if (view === "whatif" && !isEqual(listed, edits)) store.set({ edits: listed });
    }
    changes.subscribe(() => {
      followList();
      panel.update();
    }, page.signal);

    return (state, before) => {
      const { attention, head, query, edits } = state;
      const isNewRow = !before || before.attention !== attention || before.head !== head || before.query !== query;
      const listed = changes.ofRow(attention, head, query)?.edits ?? {};
      if (isNewRow && Object.keys(edits).length === 0 && !isEqual(listed, edits)) {
        store.set({ edits: listed }); // updates this view
        return;
      }
      update(state, before);
      if (isEqual(listed, edits)) panel.update();
      else changes.setEdits(attention, head, query, edits);
    };
  },
};
