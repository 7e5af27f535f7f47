// The page's addresses: each view has one, behind the #, and is drawn anew while its data changes.

import { rights } from "./actions.js";
import { ApiError, get, hasToken, isToken, ofAMoment, setToken } from "./api.js";
import { audit } from "./audit.js";
import { el, time } from "./dom.js";
import { deadLetters, group, groups, members } from "./groups.js";
import { find, message } from "./messages.js";
import { overview } from "./overview.js";
import { noteVersion, problem } from "./problems.js";
import { settings } from "./settings.js";
import { delayed, queue, topic, topics } from "./topics.js";
import { transaction, transactions } from "./transactions.js";

/**
 * Path, view, and the time in ms after which it is drawn anew (0: never). A view is told whether it is opened.
 * @type {Array<[RegExp, (parts: any, query: URLSearchParams, isNew: boolean) => Promise<Array<Node>>, number]>}
 */
const VIEWS = [
  [/^\/$/, overview, 5_000],
  [/^\/topics$/, topics, 10_000],
  [/^\/topics\/([^/]+)$/, topic, 5_000],
  [/^\/topics\/([^/]+)\/queues\/(\d+)$/, queue, 0],
  [/^\/topics\/([^/]+)\/delayed$/, delayed, 5_000],
  [/^\/groups$/, groups, 10_000],
  [/^\/groups\/([^/]+)$/, group, 5_000],
  [/^\/groups\/([^/]+)\/members$/, members, 5_000],
  [/^\/groups\/([^/]+)\/dead-letters$/, deadLetters, 5_000],
  [/^\/transactions$/, transactions, 5_000],
  [/^\/transactions\/([^/]+)$/, transaction, 5_000],
  [/^\/settings$/, settings, 0],
  [/^\/audit$/, audit, 5_000],
  [/^\/find$/, find, 0],
  [/^\/messages\/([^/]+)$/, message, 10_000],
];

const RETRY_MS = 5_000;
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const stale = /** @type {HTMLElement} */ (document.getElementById("stale"));
let [drawn, isWhole] = [0, false];
let drawnAt = new Date();
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

async function draw(isNew) {
  clearTimeout(timer);
  const turn = ++drawn;
  const [path, search = ""] = (location.hash.slice(1) || "/").split("?");
  const found = VIEWS.find(([pattern]) => pattern.test(path));
  const asked = new Date();
  let nodes, failed;
  try {
    if (!found) throw nowhere(path);
    const view = found[1], [names, query] = [parts(found[0], path), new URLSearchParams(search)];
    nodes = await (isNew ? view(names, query, true) : ofAMoment(() => view(names, query, false)));
  } catch (error) {
    failed = error;
    nodes = await why(error);
  }
  if (turn !== drawn) return; // the user has gone on meanwhile
  const isRead = failed && isWhole && found?.[1] === message && !isUnknown(failed); // a story that was told stays
  if (isNew || !(isUsed() || isRead)) {
    replace(nodes);
    [drawnAt, isWhole] = [asked, !failed];
    stale.replaceChildren();
    mark(path);
  } else if (failed) {
    say("Not drawn anew since ", ...(await problem(failed)));
  } else {
    say("It is not drawn anew while it is used. It is as of ");
  }
  if (isNew) {
    main.focus({ preventScroll: true }); // a screen reader goes on here
    scrollTo(0, 0);
  }
  const again_ms = found?.[2] || (isPassing(failed) ? RETRY_MS : 0);
  const isSignIn = Boolean(main.querySelector("#token")); // there is nothing to look for before somebody has signed in
  if (again_ms && !isSignIn) timer = setTimeout(() => (document.hidden ? again() : draw(false)), again_ms);
}

const nowhere = (path) => new ApiError(404, "not_found", `There is no view ${path}.`);

/** @param {RegExp} pattern @param {string} path */
function parts(pattern, path) {
  try {
    return (pattern.exec(path) ?? []).slice(1).map(decodeURIComponent);
  } catch {
    throw nowhere(path);
  }
}

/** Whether the node, or the cluster, may answer later what it does not answer now. */
const isPassing = (error) => error instanceof ApiError && (error.status === 0 || error.status >= 500 || error.status === 429);

const isUnknown = (error) => error instanceof ApiError && error.status === 401;

/** Whether a user reads, writes or has chosen what would be taken away. */
function isUsed() {
  const [used, selection] = [document.activeElement, getSelection()];
  const isIn = used !== main && main.contains(used) && !used?.matches("[role=region]");
  const isSelected = selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  /** @type {NodeListOf<HTMLInputElement | HTMLTextAreaElement>} */
  const fields = main.querySelectorAll("input, textarea");
  const isWritten = [...fields].some((each) => each.value !== each.defaultValue);
  return isIn || isSelected || isWritten || Boolean(main.querySelector("details[open], [data-used]"));
}

/** Puts the nodes in place of those that are there; tables stay where they were scrolled, and keep the focus. */
function replace(nodes) {
  if (nodes.length === main.childNodes.length && nodes.every((each, at) => each === main.childNodes[at])) return;
  const regions = () => [...main.querySelectorAll("[role=region]")];
  const before = regions().map((each) => ({ label: each.ariaLabel, left: each.scrollLeft, top: each.scrollTop, isUsed: each === document.activeElement }));
  main.replaceChildren(...nodes);
  document.title = `${main.querySelector("h1")?.textContent ?? "KeelMQ"} – KeelMQ`;
  for (const each of regions()) {
    const at = before.findIndex(({ label }) => label === each.ariaLabel);
    if (at < 0) continue;
    const [same] = before.splice(at, 1); // others may have the same label
    each.scrollTo(same.left, same.top);
    if (same.isUsed) /** @type {HTMLElement} */ (each).focus({ preventScroll: true });
  }
}

/** Says why what is shown is old, once for each reason. @param {string} since @param {...Node} reasons */
function say(since, ...reasons) {
  const text = el("p", {}, since, time(drawnAt.getTime()), ".");
  if (stale.textContent !== [text, ...reasons].map((each) => each.textContent).join("")) stale.replaceChildren(text, ...reasons);
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
  if (isUnknown(error)) return [signIn(hasToken() ? error.message : "")];
  return [el("h1", {}, error instanceof ApiError && error.code === "leader_only" ? "Ask the leader" : "That did not work"), el("div", { role: "alert" }, await problem(error))];
}

function signIn(refused) {
  const input = el("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    const token = /** @type {HTMLInputElement} */ (input).value.trim();
    if (!isToken(token)) {
      main.replaceChildren(signIn("This is no token: it has characters that none has."));
      main.querySelector("input")?.focus();
      return;
    }
    setToken(token);
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
  noteVersion(cluster.version);
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
