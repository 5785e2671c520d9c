// The page that plans a job: asks worker.js, and shows what it answers.
"use strict";

const COLOURS = 7; // in page.css
const COUNTS = ["tensor", "context", "expert", "pipeline", "chunks", "micro_batch", "replicas"];
const WORDS = ["shard", "checkpointing"];
const get = (id) => document.getElementById(id);
const form = get("planner");
const field = (name) => form.elements[name];

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// ---- asking: one question at a time, and of those that wait only the newest

let worker = null;
let isReady = false;
let asked = null;
let next = null;
let nextSeen = null;

function question() {
  const method = { sequence_parallel: field("sequence_parallel").checked };
  for (const name of COUNTS) method[name] = Number(field(name).value);
  for (const name of WORDS) method[name] = field(name).value;
  return {
    what: field("what").value,
    model: field("model").value,
    tokens: Number(field("tokens").value),
    number: Number(field("number").value),
    gpu: field("gpu").value,
    batch: Number(field("batch").value),
    dollars: field("dollars").value ? Number(field("dollars").value) : null,
    method,
  };
}

function ask() {
  get("by-hand").disabled = get("by-hand").hidden = field("what").value !== "plan";
  next = nextSeen = null;
  const wrong = form.querySelector("input:invalid");
  if (wrong) {
    showProblem(`${wrong.labels[0].firstChild.textContent.trim()}: ${wrong.validationMessage}`);
    return;
  }
  next = question();
  send();
}

function send() {
  if (!isReady || asked || !(next || nextSeen)) return;
  asked = next || nextSeen;
  if (asked === next) next = null;
  else nextSeen = null;
  if (asked.what === "best") {
    say("Searching for the fastest method that fits…");
    get("planner-results").setAttribute("aria-busy", "true");
  }
  worker.postMessage(asked);
}

function receive(answer) {
  const { what } = asked;
  const isOld = next || form.querySelector("input:invalid");
  const { dollars, ...job } = asked;
  asked = null;
  if (!isOld) {
    if (answer.problem) showProblem(answer.problem);
    else if (what === "seen") get("planner-seen").textContent = answer.seen;
    else showPlans(answer.plans, what, job);
  }
  send();
}

// ---- showing

function say(text) {
  get("planner-status").textContent = text;
}

function showProblem(text) {
  say("");
  get("planner-problem").textContent = text;
  get("planner-problem").hidden = false;
  get("planner-results").hidden = true;
  get("data").textContent = "…";
}

function showPlans(plans, what, job) {
  get("planner-problem").hidden = true;
  get("planner-results").hidden = false;
  get("planner-results").setAttribute("aria-busy", "false");
  get("planner-best").hidden = what !== "best";
  const rows = what === "best" ? plans.map((plan, i) => row(plan, i)) : [];
  get("planner-best").querySelector("tbody").replaceChildren(...rows);
  const choose = (i) => {
    rows.forEach((each, k) => {
      each.classList.toggle("shown", k === i);
      each.querySelector("button").setAttribute("aria-pressed", String(k === i));
    });
    showPlan(plans[i], job);
  };
  rows.forEach((each, i) => each.addEventListener("click", () => choose(i)));
  choose(0);
  dispatchEvent(new Event("resize")); // site.js makes a table that scrolls reachable
}

function row(plan, i) {
  const { method } = plan;
  const made = element("tr");
  const button = element("button", String(i + 1));
  button.type = "button";
  button.setAttribute("aria-label", `show plan ${i + 1}`);
  made.append(element("td"));
  made.firstChild.append(button);
  for (const text of [
    method.data, method.tensor, method.context, method.expert, method.pipeline, method.chunks, method.shard,
    method.replicas, method.checkpointing, method.micro_batch, plan.step.words, plan.tokens_per_s, plan.mfu, plan.peak.words, plan.limit,
  ]) made.append(element("td", text));
  return made;
}

function showPlan(plan, job) {
  fill(plan.method);
  const verdict = plan.fits ? "fits" : "does not fit";
  const used = plan.num_gpus === job.number ? "" : `${plan.num_gpus} of `;
  say(`${used}${job.number} ${plan.gpu}: ${verdict}, ${plan.step.words} a step.`);
  const numbers = [
    ["memory at the peak", `${plan.peak.words} of ${plan.gpu_memory}: ${verdict}`],
    ["a step", plan.step.words],
    ["a GPU", `${plan.tokens_per_s} tokens/s`],
    ["of the peak FLOP/s (MFU)", plan.mfu],
    ["for a billion tokens", `${plan.gpu_hours} GPU hours${plan.price === null ? "" : `, ${plan.price}`}`],
  ];
  get("planner-numbers").replaceChildren(...numbers.map(([what, number]) => {
    const made = element("div");
    made.append(element("dt", what), element("dd", number));
    return made;
  }));
  get("planner-numbers").querySelector("dd").classList.toggle("over", !plan.fits);
  showBar(get("memory-bar"), plan.peak, plan.peak.parts.filter((part) => part.value), plan.gpu_bytes, plan.gpu_memory);
  showBar(get("step-bar"), plan.step, plan.step.leaves);
  get("planner-lines").replaceChildren(tree([plan.memory, plan.peak, plan.step]));
  get("planner-seen").textContent = "Comparing with published jobs…";
  const method = {};
  for (const name of [...COUNTS, ...WORDS, "sequence_parallel"]) method[name] = plan.method[name];
  nextSeen = { ...job, what: "seen", method };
  send();
}

function fill(method) { // by hand begins with the plan that is shown
  get("data").textContent = `${method.data}`;
  for (const name of [...COUNTS, ...WORDS]) field(name).value = method[name];
  field("sequence_parallel").checked = method.sequence_parallel;
}

function showBar(place, line, parts, room, roomInWords) {
  const whole = Math.max(line.value, room || 0);
  const bar = element("div", undefined, "bar");
  bar.setAttribute("role", "img");
  const said = parts.map((part) => `${part.name} ${part.words}`).join(", ");
  bar.setAttribute("aria-label", `${line.words}${room ? ` of ${roomInWords}` : ""}: ${said}`);
  const legend = element("ul", undefined, "legend");
  parts.forEach((part, i) => {
    const colour = `colour-${i % COLOURS}${i >= COLOURS ? " striped" : ""}`;
    const piece = element("span", undefined, `part ${colour}`);
    piece.style.width = `calc(${(100 * part.value) / whole}% - 1px)`;
    piece.title = `${part.name}: ${part.words}`;
    bar.append(piece);
    const entry = element("li");
    const share = (100 * part.value) / line.value;
    entry.append(
      element("span", undefined, `swatch ${colour}`), element("span", part.name),
      element("span", `${part.words} · ${share < 10 ? share.toPrecision(2) : share.toFixed(0)}%`, "number"),
    );
    legend.append(entry);
  });
  if (room) {
    const outline = element("span", undefined, "room");
    outline.style.width = `${(100 * room) / whole}%`;
    outline.title = `a GPU has ${roomInWords}`;
    bar.append(outline);
  }
  place.replaceChildren(bar, legend);
}

function tree(lines) {
  const list = element("ul");
  for (const line of lines) {
    const item = element("li");
    item.append(element("b", line.name), ` ${line.words}. ${line.formula} `);
    if (line.source) item.append(element("span", `[${line.source}]`, "source"));
    if (line.parts.length) item.append(tree(line.parts));
    list.append(item);
  }
  return list;
}

// ---- starting

function usualTokens() {
  field("tokens").value = field("model").selectedOptions[0].dataset.tokens;
}

function fail(why) {
  get("planner-progress").hidden = true;
  asked = null;
  showProblem(`The planner cannot run here: ${why}`);
}

const inMB = (bytes) => (bytes / 1e6).toFixed(1);

function start() {
  if (location.protocol === "file:") {
    fail("a browser loads it only from a server; start one with python -m http.server --directory build/site");
    return;
  }
  const total = Number(form.dataset.bytes);
  say("Loading Python…");
  get("planner-progress").hidden = false;
  worker = new Worker("planner/worker.js", { type: "module" });
  worker.onerror = (event) => fail(event.message || "its files could not be loaded");
  worker.onmessage = ({ data }) => {
    if (data.failed) {
      fail(data.failed);
    } else if (data.answer) {
      receive(data.answer);
    } else if (data.ready) {
      get("planner-progress").hidden = true;
      isReady = true;
      ask();
    } else {
      get("planner-progress").firstChild.value = data.loaded;
      say(data.loaded < total ? `Loading Python: ${inMB(data.loaded)} of ${inMB(total)} MB` : "Starting Python…");
    }
  };
}

usualTokens();
form.addEventListener("input", (event) => {
  if (event.target === field("model")) usualTokens();
  ask();
});
form.addEventListener("submit", (event) => event.preventDefault());
start();
