/** A link that holds what was chosen and edited. */

import { element } from "../core/dom.js";

/**
 * The address of this page, without its last part; null in a frame of a notebook, which has none of its own.
 * @returns {string | null}
 */
function baseAddress() {
  const hasAddress = window.top === window && /^(file|https?):$/.test(location.protocol);
  return hasAddress ? location.href.replace(/#.*$/s, "") : null;
}

/**
 * @param {import("../core/store.js").Store} store
 * @param {import("./whatif.js").Editing} editing
 */
export function copyLink(store, { commit }) {
  const button = element("button", { type: "button", class: "copy", onclick: copy }, "Copy the link");
  const message = element("span", { class: "quiet", role: "status" });
  const text = element("input", { type: "text", readonly: true, class: "link", "aria-label": "The link", hidden: true, onfocus: () => text.select() });

  async function copy() {
    commit();
    const address = baseAddress();
    const link = `${address ?? ""}${store.link}`;
    text.hidden = true;
    if (address !== null && navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(link);
        message.textContent = "Copied. Whoever has this file opens it with these choices and edits.";
        return;
      } catch {
        // The reader said no; the field below is there to be copied by hand.
      }
    }
    text.value = link;
    text.hidden = false;
    text.focus();
    text.select();
    message.textContent =
      address === null
        ? "A frame in a notebook has no address of its own. Save the page with recording.to_html(\"page.html\"), open that, and put this behind its address:"
        : "Copy it from here:";
  }
  return element("span", { class: "link-part" }, button, message, text);
}
