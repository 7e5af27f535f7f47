// What can be done to consumer groups: pause and resume, reset offsets, replay dead letters.

import { get, post } from "./api.js";
import { button, form, why, wrong } from "./actions.js";
import { count, el, part, table } from "./dom.js";

const [REPLAY_MAX, SHOWN_MAX] = [100, 100];
const path = (name) => `/v1/groups/${part(name)}`;

/** The request of a reset. @param {Record<string, string>} values @returns {Record<string, any>} */
function request({ topic, queue, to, at, offset }) {
  /** @type {Record<string, unknown>} */
  const body = queue === "" ? { topic } : { topic, queue: Number(queue) };
  if (to === "time") {
    const ms = new Date(at).getTime();
    if (Number.isNaN(ms)) throw wrong("Give the time from which on messages are given again.");
    return { ...body, timestamp_ms: ms };
  }
  if (to !== "offset") return { ...body, to };
  if (offset === "") throw wrong("Give the offset.");
  return { ...body, offset: Number(offset) };
}

/** Where each queue is, and where a reset takes it. */
async function moves(name, asked) {
  const topic = part(asked.topic);
  const [{ offsets }, found] = await Promise.all([get(`${path(name)}/offsets`, { topic: asked.topic }), get(`/v1/topics/${topic}`)]);
  const queues = found.queue_offsets.filter((each) => asked.queue === undefined || each.queue === asked.queue);
  if (!queues.length) throw wrong(`Topic ${asked.topic} has no queue ${asked.queue}.`);
  return Promise.all(
    queues.map(async ({ queue, min_offset: min, max_offset: max }) => {
      const at = asked.to ?? asked.timestamp_ms;
      const to = asked.offset ?? (await get(`/v1/topics/${topic}/queues/${queue}/offsets`, { at })).offset;
      if (to > max) throw wrong(`Queue ${queue} ends at offset ${max}.`);
      const from = offsets.find((each) => each.queue === queue)?.offset;
      return { queue, from, to, again: from === undefined ? 0 : Math.max(0, Math.max(from, min) - Math.max(to, min)), skipped: from === undefined ? 0 : Math.max(0, Math.max(to, min) - Math.max(from, min)) };
    }),
  );
}

export function pauseForm(name, paused, denied) {
  const [verb, label] = paused ? ["resume", "Resume"] : ["pause", "Pause"];
  const what = paused
    ? `Hand out messages to group ${name} again? It goes on where it was paused.`
    : `Pause group ${name}? Its consumers finish what they have, and get nothing until it is resumed. Nothing is lost.`;
  return form({
    id: "pause",
    title: `${label} the group`,
    note: paused ? "Its consumers go on where they were." : "Its consumers keep their queues and finish what they have; nothing more is handed out to them.",
    button: label,
    question: () => what,
    run: async ({ operator, reason }) => {
      const { changed } = await post(`${path(name)}/${verb}`, { operator, reason });
      if (!changed) return [`Group ${name} was ${verb}d before.`];
      return [paused ? `Resumed: group ${name} goes on where it was.` : `Paused: group ${name} gets nothing until it is resumed.`];
    },
    denied,
  });
}

const sum = (rows, name) => count(rows.reduce((total, each) => total + each[name], 0));

export function resetForm(name, topics, denied) {
  /** @type {Array<any>} */
  let shown = [];
  return form({
    id: "reset",
    title: "Reset offsets",
    note: "Members go on from the new offsets. Messages that were processed already are given to them again.",
    fields: [
      { name: "topic", label: "Topic", required: true, ...(topics.length ? { value: topics[0], options: topics.map((each) => [each, each]) } : {}) },
      { name: "queue", label: "Queue; empty: all of them", kind: "number", more: { min: 0 } },
      { name: "to", label: "To", value: "earliest", options: [["earliest", "the first kept message"], ["latest", "the end: skip all"], ["time", "a point in time"], ["offset", "an offset"]] },
      { name: "at", label: "Point in time (your time zone)", kind: "datetime-local", more: { step: 1 } },
      { name: "offset", label: "Offset", kind: "number", more: { min: 0 } },
    ],
    button: "Reset",
    preview: async (values) => {
      shown = await moves(name, request(values));
      return [
        table(
          `What a reset does now: ${sum(shown, "skipped")} messages skipped, ${sum(shown, "again")} given again`,
          [
            ["Queue", (each) => each.queue, true],
            ["From", (each) => (each.from === undefined ? "nothing committed" : count(each.from)), true],
            ["To", (each) => count(each.to), true],
            ["Skipped", (each) => count(each.skipped), true],
            ["Given again", (each) => count(each.again), true],
          ],
          shown,
        ),
      ];
    },
    question: (values) => `Reset ${shown.length} queues of ${values.topic} for group ${name}?\n\n${sum(shown, "skipped")} messages are skipped, ${sum(shown, "again")} are given again.`,
    run: async (values) => {
      const { offsets } = await post(`${path(name)}/reset`, { ...request(values), ...why(values) });
      return [`Reset: ${offsets.map((each) => `queue ${each.queue} goes on at ${count(each.offset)}`).join(", ")}.`];
    },
    denied,
  });
}

export const cloneForm = (name, denied) =>
  form({
    id: "clone",
    title: "Take over the offsets of another group",
    note: "This group goes on where the other one is. It must have no members.",
    fields: [
      { name: "source", label: "The other group", required: true },
      { name: "topic", label: "Topic; empty: all of them" },
    ],
    button: "Take over",
    preview: async ({ source, topic }) => {
      const [theirs, ours] = await Promise.all([source, name].map(async (each) => (await get(`${path(each)}/offsets`, { topic })).offsets));
      const own = (each) => ours.find(({ topic: other, queue }) => other === each.topic && queue === each.queue)?.offset;
      return [
        table(
          `What it does now with ${count(theirs.length)} queues`,
          [
            ["Topic", (each) => each.topic],
            ["Queue", (each) => each.queue, true],
            ["From", (each) => (own(each) === undefined ? "nothing committed" : count(own(each))), true],
            ["To", (each) => count(each.offset), true],
          ],
          theirs.slice(0, SHOWN_MAX),
          "The other group has committed nothing here.",
        ),
        ...(theirs.length > SHOWN_MAX ? [el("p", {}, `These are the first ${SHOWN_MAX}.`)] : []),
      ];
    },
    question: ({ source, topic }) => `Have group ${name} go on where group ${source} is${topic ? `, in topic ${topic}` : ""}?`,
    run: async ({ source, topic, ...said }) => {
      const { offsets } = await post(`${path(name)}/clone-offsets`, { source, ...(topic ? { topic } : {}), ...why(said) });
      return [`Taken over: the offsets of ${count(offsets.length)} queues of ${source}.`];
    },
    denied,
  });

async function replay(name, offsets, said) {
  const { results } = await post(`${path(name)}/dead-letters/replay`, { offsets, ...said });
  return results.filter((each) => !each.duplicate).length;
}

export const replayOne = (name, letter, denied) =>
  button({
    label: "Replay",
    about: letter.message_id,
    question: `Give this dead letter to group ${name} once more?\n\n${letter.message_id}`,
    run: async (said) => [(await replay(name, [letter.offset], said)) ? `Replayed: ${letter.message_id}` : "It was replayed before."],
    denied,
  });

export const replayAll = (name, denied) =>
  button({
    label: "Replay all",
    about: `dead letters of ${name}`,
    question: `Give all dead letters of group ${name} to it once more, except those that were replayed before?`,
    run: async (said) => {
      let [replayed, offset, end] = [0, 0, 1];
      while (offset < end) {
        const page = await get(`${path(name)}/dead-letters`, { offset, limit: REPLAY_MAX });
        const waiting = page.messages.filter((each) => !each.replayed_at_ms).map((each) => each.offset);
        if (waiting.length) replayed += await replay(name, waiting, said);
        if (page.next_offset <= offset) break;
        [offset, end] = [page.next_offset, page.max_offset];
      }
      return [`Replayed: ${count(replayed)} dead letters.`];
    },
    denied,
  });
