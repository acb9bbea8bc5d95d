/** The entry point of a page of recorded attention: its data are in the file. */

import { Data } from "./core/data.js";
import { element } from "./core/dom.js";
import { reportHeight } from "./core/frame.js";
import { mountPage } from "./page.js";

/** @param {HTMLElement} body */
async function openPage(body) {
  mountPage(body, await Data.read(document));
  document.documentElement.dataset.ready = "yes";
  reportHeight(body);
}

const body = /** @type {HTMLElement} */ (document.getElementById("page"));
openPage(body).catch((error) => {
  body.replaceChildren(element("p", { class: "broken", role: "alert" }, `This page cannot be shown: ${error instanceof Error ? error.message : error}. It needs a browser of 2023 or later, and the whole file.`));
  throw error;
});
