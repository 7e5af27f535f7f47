// Consumer groups: members, lag, dead letters.

import { rights } from "./actions.js";
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { ago, count, duration, el, facts, link, part, table, time } from "./dom.js";
import { cloneForm, pauseForm, replayAll, replayOne, resetForm } from "./group_actions.js";
import { address, after, fromName, lagColumns, next, none, turns } from "./lists.js";
import { messageLink, preview } from "./messages.js";
import { missing } from "./problems.js";

/** A group may have 16,384 queues, and the view is drawn anew every few seconds. */
const SHOWN_MAX = 200;
const LETTERS = 50;
const lags = new Chart("Lag in messages", { lag: "first" });

export async function groups(_, query) {
  const topic = query.get("topic") ?? "";
  const page = await get("/v1/lags", { topic, limit: 100, after: after(query) });
  return [
    topic ? el("h1", {}, "Groups that read topic ", link(`#/topics/${part(topic)}`, topic)) : el("h1", {}, "Consumer groups"),
    fromName("Groups from the name", "#/groups", query, topic ? { topic } : {}),
    table(
      "Groups by name",
      [
        ["Group", (group) => link(`#/groups/${part(group.group)}`, group.group)],
        ["Members", (group) => count(group.members), true],
        ["Topics", (group) => group.topics.join(", ")],
        ...lagColumns,
        ["Paused since", (group) => (group.paused ? el("span", { class: "warn" }, time(group.paused.since_ms)) : "")],
      ],
      page.groups,
      none(topic ? "No group reads it from here on." : "No consumer groups yet: the first member that joins makes one."),
    ),
    ...next(page.next, (after) => address("#/groups", { topic, after })),
  ];
}

export async function group([name]) {
  const path = `/v1/groups/${part(name)}`;
  const [found, may, { offsets }, dead] = await Promise.all([get(path), rights(`group:${name}`), get(`${path}/offsets`, { waits: true }), get(`${path}/dead-letters`, { limit: LETTERS }).catch((error) => missing("Dead letters", error))]);
  const lag = offsets.reduce((sum, each) => sum + each.lag, 0);
  if (offsets.length) lags.measured(name, { lag });
  return [
    el("h1", {}, `Group ${name}`),
    ...(found.paused ? [el("p", { class: "warn" }, `Paused: ${pausedBy(found.paused)}. Nothing is handed out until it is resumed.`)] : []),
    facts([
      ["Paused since", found.paused && time(found.paused.since_ms)],
      ["Lag", offsets.length ? `${count(lag)} messages` : "not known: nothing is committed yet"],
      ["The oldest waits since", oldest(offsets)],
      ["Members", `${found.members.length}${found.members_next ? "+" : ""}`],
      ["Topics", found.topics.join(", ")],
      ["A message that fails", found.retry_max_attempts ? `is given again, at most ${found.retry_max_attempts === 1 ? "once" : `${count(found.retry_max_attempts)} times`}` : "becomes a dead letter at once"],
    ]),
    table(
      offsets.length > SHOWN_MAX ? `Committed offsets: the ${SHOWN_MAX} queues with the largest lag, of ${count(offsets.length)}` : "Committed offsets",
      [
        ["Topic", (each) => link(`#/topics/${part(each.topic)}`, each.topic)],
        ["Queue", (each) => link(`#/topics/${part(each.topic)}/queues/${each.queue}?offset=${each.offset}`, each.queue), true],
        ["Committed", (each) => count(each.offset), true],
        ["Lag", (each) => el("span", { class: each.lag > 0 ? "warn" : undefined }, count(each.lag)), true],
        ["The first waits", (each) => ago(each.waits_since_ms), true],
      ],
      offsets.length > SHOWN_MAX ? offsets.toSorted((one, other) => other.lag - one.lag).slice(0, SHOWN_MAX) : offsets,
      "Nothing is committed yet.",
    ),
    ...(offsets.length ? [lags.draw()] : []),
    pauseForm(name, found.paused, may("alter")),
    resetForm(name, topicsOf(found, offsets), may("reset")),
    cloneForm(name, may("reset")),
    ...membersTable(name, found.members.slice(0, SHOWN_MAX), found.members.length > SHOWN_MAX ? found.members[SHOWN_MAX - 1].member_id : found.members_next),
    ...(dead instanceof Node ? [dead] : lettersTable(name, dead, may("reset"))),
  ];
}

/** The members of a group after one, by id. */
export async function members([name], query) {
  const page = await get(`/v1/groups/${part(name)}/members`, { limit: SHOWN_MAX, after: query.get("after") });
  return [el("h1", {}, "Members of group ", link(`#/groups/${part(name)}`, name)), ...membersTable(name, page.members, page.next)];
}

function membersTable(name, found, after) {
  return [
    table(
      "Members",
      [
        ["Member", (member) => member.member_id],
        ["Client", (member) => member.client_id],
        ["Joined", (member) => time(member.joined_at_ms)],
        ["Session", (member) => duration(member.session_timeout_ms), true],
        ["Queues", (member) => member.assignment.map((each) => `${each.topic}/${each.queue}`).join(", ")],
      ],
      found,
      "Nobody consumes for this group now.",
    ),
    ...next(after, (from) => `#/groups/${part(name)}/members?after=${part(from)}`),
  ];
}

/** The topics that the group reads, its own at the end. */
function topicsOf({ topics }, offsets) {
  const all = [...new Set([...offsets.map((each) => each.topic), ...topics])];
  return [...all.filter((each) => !each.startsWith("%")), ...all.filter((each) => each.startsWith("%"))];
}

/** Who paused the group, and why. */
function pausedBy({ operator, principal, reason }) {
  const by = [operator, principal && principal !== operator ? `signed in as ${principal}` : ""].filter(Boolean).join(", ");
  return `by ${by || "somebody who gave no name"}, ${reason ? `because of: ${reason}` : "without a reason"}`;
}

/** The time at which the first message that waits was stored, and how long ago that was. */
function oldest(offsets) {
  const since = Math.min(...offsets.map((each) => each.waits_since_ms ?? Infinity));
  return since === Infinity ? null : el("span", {}, time(since), `, ${duration(Math.max(0, Date.now() - since))}`);
}

/** The reason of the last attempt; unfolded, all of them, as far as they are kept. */
function attempts({ history }) {
  if (!history?.length) return "";
  const by = (each) => [each.member_id, each.client_id && each.client_id !== each.member_id ? `client ${each.client_id}` : ""].filter(Boolean).join(", ");
  const items = history.map((each) => el("li", { value: each.attempt }, time(each.at_ms), by(each) ? `, ${by(each)}` : "", `: ${each.reason || "no reason given"}`));
  return el("details", {}, el("summary", {}, history.at(-1).reason || "no reason given"), el("ol", {}, items));
}

/** The dead letters of a group from an offset of their queue on. */
export async function deadLetters([name], query) {
  const from = Math.max(0, Number(query.get("offset")) || 0);
  const [page, may] = await Promise.all([get(`/v1/groups/${part(name)}/dead-letters`, { offset: from, limit: LETTERS }), rights(`group:${name}`)]);
  return [el("h1", {}, "Dead letters of group ", link(`#/groups/${part(name)}`, name)), ...lettersTable(name, page, may("reset"), from)];
}

function lettersTable(name, { messages, next_offset: next, max_offset: end }, denied, from = 0) {
  const at = (offset) => `#/groups/${part(name)}/dead-letters?offset=${offset}`;
  const isAll = !from && next >= end;
  return [
    table(
      isAll ? "Dead letters" : "Dead letters, the oldest first",
      [
        ["Message", (each) => messageLink(each.message_id, each.origin?.topic)],
        ["From", (each) => (each.origin ? `${each.origin.topic}, queue ${each.origin.queue}, offset ${each.origin.offset}` : "")],
        ["Attempts", (each) => each.attempt ?? "", true],
        ["Last reason", attempts],
        ["Body", (each) => el("code", {}, preview(each))],
        ["Replayed", (each) => time(each.replayed_at_ms)],
        ["Action", (each) => (each.replayed_at_ms ? "" : replayOne(name, each, denied))],
      ],
      messages,
      from ? "No dead letters from here on." : "No dead letters.",
    ),
    ...turns([...(from ? [[at(0), "First page"]] : []), ...(next < end ? [[at(next), "Next page"], [at(Math.max(0, end - LETTERS)), "The newest"]] : [])]),
    ...(messages.some((each) => !each.replayed_at_ms) || next < end ? [el("p", {}, replayAll(name, denied))] : []),
  ];
}
