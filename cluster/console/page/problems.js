// What went wrong, and what to do about it.

import { ApiError, get } from "./api.js";
import { el, link } from "./dom.js";

/** What the page adds to the detail of an error, which says the rest. */
const ADVICE = {
  unreachable: "Nothing is known of what was asked: look whether it was done before doing it again.",
  unknown_outcome: "It may or may not have been done: look before doing it again.",
  request_timeout: "Try again.",
  overloaded: "Nothing was changed. Try again in a moment.",
  quota_exceeded: "Nothing was changed. Try again in a moment.",
  no_leader: "Nothing was changed. Try again once a node leads; the overview of each node tells.",
  disk_full: "Nothing was stored. Make room: keep messages of large topics for less time, or delete topics.",
  forbidden: "Nothing was changed.",
};

/**
 * The error as text with its code, advice, and a link to the leader where only that one answers.
 * @param {unknown} error
 */
export async function problem(error) {
  if (!(error instanceof ApiError)) throw error;
  const nodes = [el("p", {}, error.message, " ", el("code", {}, error.code))];
  if (error.code in ADVICE) nodes.push(el("p", {}, ADVICE[error.code]));
  if (error.code === "leader_only") {
    const { leader_url: url } = await get("/v1/cluster").catch(() => ({}));
    if (/^https?:\/\//.test(url ?? "")) nodes.push(el("p", {}, link(`${url}/console${location.hash}`, `Open this view at ${url}`)));
  }
  return nodes;
}
