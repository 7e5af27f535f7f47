// What went wrong, and what to do about it.

import { ApiError, get } from "./api.js";
import { el, link } from "./dom.js";

/** What the page adds to the detail of an error, which says the rest. */
const ADVICE = {
  unreachable: "It is asked again every few seconds. Each node has this console.",
  no_answer: "Nothing is known of what was asked: look whether it was done before doing it again.",
  unauthenticated: "Sign out, and in again with a token that is valid.",
  unknown_outcome: "It may or may not have been done: look before doing it again.",
  request_timeout: "Try again.",
  overloaded: "Try again in a moment.",
  quota_exceeded: "Try again in a moment.",
  no_leader: "Try again once a node leads; the overview of each node tells.",
  disk_full: "Make room: keep messages of large topics for less time, or delete topics.",
};
/** Codes of changes of which nothing was done. */
const UNDONE = ["unauthenticated", "overloaded", "quota_exceeded", "no_leader", "disk_full", "forbidden"];

/** The first feature level whose versions have this console. */
const CONSOLE_LEVEL = 2;
/** The codes with which a node answers a page that asks for more than its version knows. */
const NOT_KNOWN = ["invalid_request", "not_found"];
let loadedFrom = "";

/** Notes the version that the node has while it is first asked. @param {string} [version] */
export const noteVersion = (version) => (loadedFrom ||= version ?? "");

/** The address of a node's console; empty where it has none, as far as its version is known. @param {{url?: string|null, feature_level_max?: number|null}} node */
export const consoleOf = ({ url, feature_level_max: level }) => (/^https?:\/\//.test(url ?? "") && (level ?? CONSOLE_LEVEL) >= CONSOLE_LEVEL ? `${url}/console` : "");

/**
 * The error as text with its code, advice, and a link to the leader where only that one answers.
 * @param {unknown} error
 */
export async function problem(error) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return [el("p", {}, `This page has failed: ${error}`), el("p", {}, "Load it again. If that does not help, it is an error of KeelMQ.")];
  }
  const nodes = [el("p", {}, error.message, " ", el("code", {}, error.code))];
  const advice = [error.isOfChange && UNDONE.includes(error.code) && "Nothing was changed.", ADVICE[error.code]].filter(Boolean);
  if (advice.length) nodes.push(el("p", {}, advice.join(" ")));
  if (error.code === "leader_only") nodes.push(...atTheLeader(await cluster()));
  if (NOT_KNOWN.includes(error.code)) nodes.push(...ofAnotherVersion((await cluster()).version));
  return nodes;
}

const cluster = () => get("/v1/cluster").catch(() => ({}));

/** Where this view is to be had. @param {any} cluster */
function atTheLeader({ leader_id: id, leader_url: url, nodes = [] }) {
  const leader = { ...nodes.find((each) => each.node_id === id), url };
  const console = consoleOf(leader);
  if (console) return [el("p", {}, link(`${console}${location.hash}`, `Open this view at ${url}`))];
  return url ? [el("p", {}, `Node ${id} leads, whose version ${leader.version} has no console. The command keelmq does this meanwhile, and this page does once a node of a later version leads.`)] : [];
}

/** What to do where the page is of another version than the node. @param {string} [version] */
function ofAnotherVersion(version) {
  if (!version || !loadedFrom || version === loadedFrom) return [];
  return [el("p", {}, `This page is of version ${loadedFrom}, and this node runs ${version} now. Load the page again, or open the console of another node.`)];
}

/** A part of a view that could not be had, in its place; who is to sign in gets no view. @param {string} caption @param {unknown} error */
export async function missing(caption, error) {
  if (error instanceof ApiError && error.status === 401) throw error;
  return el("section", {}, el("h2", {}, caption), el("div", { class: "warn" }, await problem(error)));
}
