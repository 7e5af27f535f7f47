// Search, selection and folding in the picture of a page. Without this script the picture is whole, and stays so.
"use strict";

const picture = document.querySelector("svg");
const search = document.querySelector("#search");
const found = document.querySelector("#found");
const nodes = new Map();
const arrows = [];

for (const element of picture.querySelectorAll("[data-key]")) {
  const key = element.dataset.key;
  if (!nodes.has(key)) nodes.set(key, { elements: [], text: key.toLowerCase(), next: new Set(), before: new Set() });
  nodes.get(key).elements.push(element);
}
for (const element of picture.querySelectorAll("[data-from]")) {
  const { from, to } = element.dataset;
  arrows.push({ element, from, to });
  if (from === to || !nodes.has(from) || !nodes.has(to)) continue;
  nodes.get(from).next.add(to);
  nodes.get(to).before.add(from);
}

/** What can be reached from these keys; `side` is `next` or `before`, `through` says which keys are passed. */
function reach(keys, side, through = () => true) {
  const seen = new Set(keys);
  const rest = [...seen];
  while (rest.length) {
    const key = rest.pop();
    if (!through(key)) continue;
    for (const other of nodes.get(key)[side]) {
      if (seen.has(other)) continue;
      seen.add(other);
      rest.push(other);
    }
  }
  return seen;
}

/** Fades what is not to be shown; null shows all. */
function show(kept) {
  for (const [key, node] of nodes) {
    for (const element of node.elements) element.classList.toggle("dim", kept !== null && !kept.has(key));
  }
  for (const { element, from, to } of arrows) {
    element.classList.toggle("dim", kept !== null && !(kept.has(from) && kept.has(to)));
  }
}

let selected = null;

function select(key) {
  selected = selected === key ? null : key;
  search.value = "";
  found.textContent = "";
  show(selected === null ? null : new Set([...reach([key], "next"), ...reach([key], "before")]));
}

let hits = [];
let at = 0;

search.addEventListener("input", () => {
  selected = null;
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits = words.length ? [...nodes.keys()].filter((key) => words.every((word) => nodes.get(key).text.includes(word))) : [];
  at = 0;
  found.textContent = words.length ? `${hits.length} of ${nodes.size}` : "";
  show(words.length ? new Set(hits) : null);
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    search.value = "";
    search.dispatchEvent(new Event("input"));
  } else if (event.key === "Enter" && hits.length) {
    const [element] = nodes.get(hits[at]).elements;
    at = (at + 1) % hits.length;
    element.scrollIntoView({ block: "center", inline: "center" });
  }
});

/** Calls `act` when the element is clicked, or chosen with the keyboard. */
function button(element, label, act) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "0");
  element.setAttribute("aria-label", label);
  element.addEventListener("click", (event) => {
    if (event.target.closest("a")) return;
    event.stopPropagation();
    act();
  });
  element.addEventListener("keydown", (event) => {
    if (event.target !== element || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
}

const folded = new Set();
const folds = new Map();

/** Hides what only folded boxes lead to. Everything else stays where it is. */
function fold() {
  const isOpen = (key) => !folded.has(key);
  const seen = reach([...nodes.keys()].filter((key) => !nodes.get(key).before.size), "next", isOpen);
  const whole = reach([...nodes.keys()].filter((key) => !nodes.get(key).before.size), "next");
  for (const key of nodes.keys()) {  // what is in circles that nothing leads to
    if (whole.has(key)) continue;
    for (const other of reach([key], "next", isOpen)) seen.add(other);
    for (const other of reach([key], "next")) whole.add(other);
  }
  for (const [key, node] of nodes) {
    for (const element of node.elements) element.classList.toggle("gone", !seen.has(key));
  }
  for (const { element, from, to } of arrows) element.classList.toggle("gone", !(seen.has(from) && seen.has(to)));
  for (const [key, control] of folds) {
    const hidden = [...reach([key], "next")].filter((other) => !seen.has(other)).length;
    control.querySelector("text").textContent = !folded.has(key) ? "−" : `+${hidden}`;
    control.setAttribute("aria-expanded", String(!folded.has(key)));
  }
}

function control(key, box) {
  const create = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
    return element;
  };
  const [right, top] = ["x", "y"].map((name) => Number(box.getAttribute(name)));
  const x = right + Number(box.getAttribute("width")) - 34;
  const group = create("g", { class: "fold" });
  group.append(create("rect", { x, y: top + 6, width: 28, height: 16, rx: 8 }));
  group.append(create("text", { x: x + 14, y: top + 18, "text-anchor": "middle", "font-size": 11 }));
  button(group, `fold ${key}`, () => {
    if (!folded.delete(key)) folded.add(key);
    fold();
  });
  folds.set(key, group);
  return group;
}

for (const [key, node] of nodes) {
  const [element] = node.elements;
  button(element, key, () => select(key));
  for (const other of node.elements.slice(1)) {
    other.addEventListener("click", (event) => {
      if (!event.target.closest("a")) select(key);
    });
  }
  const box = element.querySelector("rect.box");
  if (box && node.next.size) element.append(control(key, box));
}
if (folds.size) fold();
for (const each of document.querySelectorAll("[data-all]")) {
  each.hidden = !folds.size;
  each.addEventListener("click", () => {
    folded.clear();
    if (each.dataset.all === "fold") for (const key of folds.keys()) folded.add(key);
    fold();
  });
}
const side = picture.querySelector("#side");
const frame = document.querySelector(".picture");
if (side) frame.addEventListener("scroll", () => side.setAttribute("transform", `translate(${frame.scrollLeft})`));
document.querySelector("#tools").hidden = false;
