// Messages: found by id or key, and the story of one.

import { get } from "./api.js";
import { bodyOf } from "./bodies.js";
import { caused } from "./caused.js";
import { el, facts, link, part, table, time } from "./dom.js";
import { after } from "./lists.js";
import { missing } from "./problems.js";
import { bars, timeline } from "./timeline.js";

const [PREVIEW, CAUSES_SHOWN, SUGGESTED] = [80, 20, 10];

/**
 * A link to the view of a message. Without its topic, which may be unknown, all topics are searched.
 * @param {string} id @param {string} [topic]
 */
export const messageLink = (id, topic) => link(`#/messages/${part(id)}${topic ? `?topic=${part(topic)}` : ""}`, id);

/** @param {string} caption @param {string} topic @param {Array<any>} messages @param {string} empty */
export function messageTable(caption, topic, messages, empty) {
  return table(
    caption,
    [
      ["Message", (each) => messageLink(each.message_id, topic)],
      ["Queue", (each) => each.queue, true],
      ["Offset", (each) => each.offset ?? "", true],
      ["Stored", (each) => time(each.stored_at_ms)],
      ["Keys", (each) => each.keys.join(", ")],
      ["Tag", (each) => each.tag ?? ""],
      ["Body", (each) => el("code", {}, preview(each))],
    ],
    messages,
    empty,
  );
}

export function preview(message) {
  const text = message.encoding === "utf8" ? message.body : `base64 ${message.body}`;
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

export async function find(_, query) {
  const [topic, key, id] = [query.get("topic") ?? "", query.get("key") ?? "", query.get("id") ?? ""];
  if (id) {
    location.replace(`#/messages/${part(id)}`);
    return [];
  }
  const caption = `Messages of ${topic} with the key ${key}`;
  const found = topic && key ? await get(`/v1/topics/${part(topic)}/messages`, { key, limit: 50, after: query.get("after") }).catch((error) => missing(caption, error)) : null;
  const more = found?.next ? [el("p", {}, link(`#/find?topic=${part(topic)}&key=${part(key)}&after=${part(found.next)}`, "Next page"))] : [];
  return [
    el("h1", {}, "Find a message"),
    form([["id", "Message id", ""]], (values) => `#/messages/${part(values.id)}`),
    form([["topic", "Topic", topic], ["key", "Key, such as an order's number", key]], (values) => `#/find?topic=${part(values.topic)}&key=${part(values.key)}`),
    ...(found instanceof Node ? [found] : found ? [messageTable(caption, topic, found.messages, "No message of this topic has this key.")] : []),
    ...more,
  ];
}

function form(fields, address) {
  const names = el("datalist", { id: "topic-names" });
  const suggest = ({ target }) => target.name === "topic" && suggestTopics(names, target.value);
  const inputs = fields.map(([name, , value]) => /** @type {HTMLInputElement} */ (el("input", { id: name, name, value, required: true, list: name === "topic" ? names.id : undefined, autocomplete: "off" })));
  const go = (event) => {
    event.preventDefault();
    location.hash = address(Object.fromEntries(inputs.map((input) => [input.name, input.value.trim()])));
  };
  return el("form", { onsubmit: go, oninput: suggest, onfocusin: suggest, class: "row" }, fields.flatMap(([name, label], at) => [el("label", { for: name }, label), inputs[at]]), names, el("button", {}, "Find"));
}

let suggested = 0;

/** Suggests the topics from a name on, the ones that begin with it first. @param {HTMLElement} list @param {string} from */
async function suggestTopics(list, from) {
  const turn = ++suggested;
  const { topics } = await get("/v1/topics", { limit: SUGGESTED, after: after(new URLSearchParams({ from })) }).catch(() => ({ topics: [] }));
  if (turn === suggested) list.replaceChildren(...topics.filter(({ topic }) => topic.startsWith(from)).map(({ topic }) => el("option", { value: topic })));
}

/**
 * The view that is drawn: its address, the messages, what their traces told, and the nodes.
 * @type {{of: string, messages: Array<any>, told: string, nodes: Array<Node>}}
 */
let drawn = { of: "", messages: [], told: "", nodes: [] };
const topicsOf = (messages) => [...new Set(messages.map((each) => each.topic))];
const isOpen = (traces) => traces.some(({ events }) => bars(events).some((each) => each.isOpen));

/** The messages with an id. Drawn anew, their traces alone are asked for: bodies are large, and do not change. */
export async function message([id], query, isNew) {
  const path = `/v1/messages/${part(id)}`;
  const known = query.get("topic");
  const traced = (topic) => get(`${path}/trace`, { topic });
  const tracesOf = async (asked) => (await Promise.all(asked)).flatMap((each) => each.traces);
  const as = (form) => `#/messages/${part(id)}?${known ? `topic=${part(known)}&` : ""}body=${form}`;
  const draw = (messages, traces) => {
    const nodes = [el("h1", {}, `Message ${id}`), ...messages.flatMap((each, at) => story(each, traces[at], bodyOf(each, query.get("body"), as)))];
    drawn = { of: `${id}?${query}`, messages, told: JSON.stringify(traces), nodes };
    return nodes;
  };
  if (!isNew && drawn.of === `${id}?${query}`) {
    const traces = await tracesOf(topicsOf(drawn.messages).map(traced));
    if (JSON.stringify(traces) === drawn.told) return isOpen(traces) ? draw(drawn.messages, traces) : drawn.nodes;
  }
  const asked = known ? [traced(known)] : null; // at the same time
  const [{ messages }] = await Promise.all([get(path, { topic: known }), ...(asked ?? [])]);
  return draw(messages, await tracesOf(asked ?? topicsOf(messages).map(traced)));
}

/**
 * Links to the messages that a handler was processing when it sent this one (client/keelmq/causation.py).
 * @param {Record<string, string>} properties
 */
function causes({ causation_id: ids, causation_topic: topics }) {
  if (!ids) return null;
  const named = (topics ?? "").split(",");
  const links = ids.split(",").map((id, at) => messageLink(id, named[at] ?? named[0]));
  return el("span", {}, ...links.slice(0, CAUSES_SHOWN).flatMap((each, at) => (at ? [", ", each] : [each])), links.length > CAUSES_SHOWN ? `, and ${links.length - CAUSES_SHOWN} more` : null);
}

function story(message, trace, body) {
  return [
    facts([
      ["State", message.state],
      ["Topic", link(`#/topics/${part(message.topic)}`, message.topic)],
      ["Queue", message.offset === undefined ? message.queue : link(`#/topics/${part(message.topic)}/queues/${message.queue}?offset=${message.offset}`, `${message.queue}, offset ${message.offset}`)],
      ["Keys", message.keys?.join(", ")],
      ["Tag", message.tag],
      ["Sharding key", message.sharding_key],
      ["Born", time(message.born_at_ms || null)],
      ["Stored", time(message.stored_at_ms)],
      ["Log entry", message.raft_index],
      ["Caused by", causes(message.properties ?? {})],
      ...Object.entries(message.properties ?? {}).map(([name, value]) => [`Property ${name}`, value]),
    ]),
    ...body,
    ...(trace ? [el("h2", {}, "What became of it"), timeline(trace.events), ...(trace.groups_left_out ? [el("p", {}, "Groups that you may not describe were left out: others may have had the message.")] : [])] : []),
    caused(message.message_id, message.topic),
  ];
}
