// The page's addresses: each view has one, behind the #, and is drawn anew while its data changes.

import { rights } from "./actions.js";
import { ApiError, get, hasToken, setToken } from "./api.js";
import { audit } from "./audit.js";
import { el } from "./dom.js";
import { group, groups } from "./groups.js";
import { find, message } from "./messages.js";
import { overview } from "./overview.js";
import { problem } from "./problems.js";
import { settings } from "./settings.js";
import { queue, topic, topics } from "./topics.js";
import { transaction, transactions } from "./transactions.js";

/**
 * Path, view, and the time in ms after which it is drawn anew (0: never).
 * @type {Array<[RegExp, (parts: any, query: URLSearchParams) => Promise<Array<Node>>, number]>}
 */
const VIEWS = [
  [/^\/$/, overview, 5_000],
  [/^\/topics$/, topics, 0],
  [/^\/topics\/([^/]+)$/, topic, 5_000],
  [/^\/topics\/([^/]+)\/queues\/(\d+)$/, queue, 0],
  [/^\/groups$/, groups, 0],
  [/^\/groups\/([^/]+)$/, group, 5_000],
  [/^\/transactions$/, transactions, 5_000],
  [/^\/transactions\/([^/]+)$/, transaction, 5_000],
  [/^\/settings$/, settings, 0],
  [/^\/audit$/, audit, 5_000],
  [/^\/find$/, find, 0],
  [/^\/messages\/([^/]+)$/, message, 0],
];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
let drawn = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

async function draw(isNew) {
  clearTimeout(timer);
  const turn = ++drawn;
  const [path, search = ""] = (location.hash.slice(1) || "/").split("?");
  const found = VIEWS.find(([pattern]) => pattern.test(path));
  let nodes;
  try {
    if (!found) throw new ApiError(404, "not_found", `There is no view ${path}.`);
    const parts = (found[0].exec(path) ?? []).slice(1).map(decodeURIComponent);
    nodes = await found[1](parts, new URLSearchParams(search));
  } catch (error) {
    nodes = await why(error);
  }
  if (turn !== drawn) return; // the user has gone on meanwhile
  // What a user reads, writes or has chosen is not taken away.
  const used = document.activeElement;
  const isUnused = (used === main || !main.contains(used) || used?.matches("[role=region]")) && !main.querySelector("details[open]");
  if (isNew || isUnused) {
    main.replaceChildren(...nodes);
    mark(path);
  }
  if (isNew) {
    document.title = `${main.querySelector("h1")?.textContent ?? "KeelMQ"} – KeelMQ`;
    main.focus({ preventScroll: true }); // a screen reader goes on here
    scrollTo(0, 0);
  }
  if (found?.[2]) timer = setTimeout(() => (document.hidden ? again() : draw(false)), found[2]);
}

const again = () => document.addEventListener("visibilitychange", () => draw(false), { once: true });

function mark(path) {
  for (const each of document.querySelectorAll("nav a")) {
    const own = each.getAttribute("href")?.slice(1) ?? "";
    const isHere = own === "/" ? path === "/" : path.startsWith(own);
    if (isHere) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

/** What went wrong, and what to do about it. */
async function why(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) return [signIn(hasToken() ? error.message : "")];
  return [el("h1", {}, error.code === "leader_only" ? "Ask the leader" : "That did not work"), el("div", { role: "alert" }, await problem(error))];
}

function signIn(refused) {
  const input = el("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    setToken(/** @type {HTMLInputElement} */ (input).value.trim());
    whom();
    draw(true);
  };
  return el(
    "form",
    { onsubmit: submit },
    el("h1", {}, "Sign in"),
    refused ? el("p", { role: "alert" }, refused) : null,
    el("p", {}, "This cluster asks for a token. It is kept in this tab only, until the tab is closed. An administrator makes one with ", el("code", {}, "keelmq auth token create USER"), "."),
    el("label", { for: "token" }, "Token"),
    input,
    el("button", {}, "Sign in"),
  );
}

async function whom() {
  const place = /** @type {HTMLElement} */ (document.getElementById("whom"));
  const signOut = () => {
    setToken("");
    whom();
    draw(true);
  };
  const [cluster, refused] = await Promise.all([get("/v1/cluster").catch(() => ({})), rights("cluster").then((may) => may("admin"), () => "nobody is known")]);
  /** @type {HTMLElement} */ (document.getElementById("to-audit")).hidden = Boolean(refused);
  place.replaceChildren(...(cluster.cluster_id ? [`${cluster.cluster_id}, node ${cluster.node_id}`] : []), ...(hasToken() ? [" ", el("button", { onclick: signOut }, "Sign out")] : []));
}

const said = /** @type {HTMLElement} */ (document.getElementById("said"));
addEventListener("hashchange", () => {
  said.replaceChildren();
  draw(true);
});
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault(); // what stands behind the # is the view
  main.focus();
});
addEventListener("done", (event) => {
  said.replaceChildren(.../** @type {CustomEvent} */ (event).detail);
  draw(true);
});
whom();
draw(true);
