// The page works without this file, except for deciding. Loaded before the body, so that the theme is there at once.
"use strict";

// --- Airflow's theme, where it can be read: same origin, so its storage is ours ------------------------------
function theme() {
  let chosen = null;
  try {
    chosen = window.localStorage.getItem("theme");
  } catch {
    // Storage may be closed to us; then the system's preference holds.
  }
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  } else {
    delete document.documentElement.dataset.theme;
  }
}
theme();
window.addEventListener("storage", theme);

// --- and its time zone: the one chosen there, else the browser's, as there -------------------------------------
function zone() {
  try {
    const chosen = JSON.parse(window.localStorage.getItem("timezone"));
    new Intl.DateTimeFormat("en", { timeZone: chosen ?? undefined });
    return chosen ?? undefined;
  } catch {
    return undefined;
  }
}

function moments() {
  const form = new Intl.DateTimeFormat("en", {
    timeZone: zone(), year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", hourCycle: "h23", timeZoneName: "short",
  });
  document.querySelectorAll("time[data-moment]").forEach((place) => {
    const part = Object.fromEntries(form.formatToParts(new Date(place.dateTime)).map((one) => [one.type, one.value]));
    place.textContent = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
  });
}

// Fields for times speak that zone too. Addresses and programs have UTC: in an attribute a field's value is of it.
const FIELDS = "input[type=datetime-local]";
const minutes = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };

function wall(instant) {
  const form = new Intl.DateTimeFormat("en", { ...minutes, timeZone: zone() });
  const part = Object.fromEntries(form.formatToParts(instant).map((one) => [one.type, one.value]));
  return `${part.year.padStart(4, "0")}-${part.month}-${part.day}T${part.hour}:${part.minute}`;
}

function written(field) {
  if (field.type !== "datetime-local" || !field.value) {
    return field.value;
  }
  const meant = Date.parse(`${field.value}Z`);
  let found = meant;
  for (let again = 0; again < 2; again += 1) { // what clocks show there at the first guess tells how far it is off
    found += meant - Date.parse(`${wall(new Date(found))}Z`);
  }
  return new Date(found).toISOString();
}

function fields() {
  const own = zone() ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  document.querySelectorAll("[data-spoken]").forEach((place) => { place.textContent = own.replaceAll("_", " "); });
  document.querySelectorAll(FIELDS).forEach((field) => {
    if (field.dataset.shown === undefined || field.dataset.shown === field.value) { // not changed by anybody
      field.value = field.defaultValue ? wall(new Date(`${field.defaultValue}Z`)) : "";
      field.dataset.shown = field.value;
    }
  });
  document.querySelectorAll("option[data-zone]").forEach((today) => {
    if (!today.defaultSelected || today.dataset.zone === own) { // else it is somebody else's day, and says so
      today.dataset.zone = own;
      today.textContent = "today";
    }
  });
}

function submitted(event) {
  for (const field of event.target.querySelectorAll(FIELDS)) {
    if (field.name) {
      event.formData.set(field.name, written(field));
    }
  }
  const today = event.target.querySelector("option[data-zone]:checked");
  if (today) {
    event.formData.set("zone", today.dataset.zone);
  }
}
window.addEventListener("storage", (event) => {
  if (event.key === "timezone") {
    moments();
    fields();
  }
});

// --- links to Airflow's own pages --------------------------------------------------------------------------
// Within Airflow this page is in a frame that may not navigate the window around it; the window itself may.
function follow(event) {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) {
    return;
  }
  try {
    const outside = window.parent.document.createElement("a");
    outside.href = link.href;
    window.parent.document.body.append(outside);
    event.preventDefault();
    outside.click();
    outside.remove();
  } catch {
    // Another origin around us: the link opens here.
  }
}

// --- picking rows ------------------------------------------------------------------------------------------
function picked(form) {
  const boxes = [...form.querySelectorAll("[data-pick]")];
  const count = boxes.filter((box) => box.checked).length;
  form.querySelectorAll("[data-picked-count]").forEach((place) => { place.textContent = String(count); });
  form.querySelectorAll(".only-picked").forEach((part) => { part.hidden = count === 0; });
  form.querySelectorAll(".unless-picked").forEach((part) => { part.hidden = count > 0; });
  const all = form.querySelector("[data-pick-all]");
  if (all) {
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  }
}

// --- what people say, to the server ---------------------------------------------------------------------------
let unanswered = 0;

async function post(endpoint, order) {
  unanswered += 1;
  try {
    const response = await fetch(endpoint, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(order),
    });
    const told = await response.json();
    if (!response.ok) {
      throw new Error(told.detail);
    }
    return told;
  } finally {
    unanswered -= 1;
  }
}

function submitter(form) {
  return form.querySelector("button:not([type=button])");
}

// --- deciding ----------------------------------------------------------------------------------------------
async function decide(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const answer = form.querySelector(".answer");
  const button = submitter(form);
  const order = JSON.parse(form.dataset.decision);
  for (const field of form.querySelectorAll("textarea")) {
    if (field.name !== "corrected_body" || field.value !== field.defaultValue) { // a body left alone goes as it is
      order[field.name] = field.value;
    }
  }
  const headers = correctedHeaders(form);
  if (Object.keys(headers).length) {
    order.corrected_headers = headers;
  }
  button.disabled = true;
  answer.className = "answer";
  const corrected = JSON.stringify([order.corrected_body, order.corrected_headers]);
  if (form.dataset.check && corrected === "[null,null]") {
    answer.classList.add("bad-text");
    answer.textContent = "Nothing is corrected yet.";
    button.disabled = false;
    return;
  }
  if (form.dataset.check && form.dataset.checked !== corrected) {
    if (await compare(form, order, answer)) {
      form.dataset.checked = corrected;
    }
    button.disabled = false;
    return;
  }
  answer.textContent = "Writing it down …";
  try {
    const told = await post(form.dataset.endpoint, order);
    const number = (n) => n.toLocaleString("en");
    const messages = told.count === 1 ? "1 message" : `${number(told.count)} messages`;
    const fewer = told.stopped || told.expected > told.count;
    if (fewer) { // what the preview showed is more than what was left, or than what could be written
      const others = (told.faster ?? []).map((one) => `${one.by} (${one.decision}, ${number(one.count)})`).join(", ");
      const all = order.expected === undefined ? "" : ` of ${number(order.expected)}`;
      const rest = told.stopped ? "the rest could not be written now, so open this page again for it"
        : others ? `${others} was faster` : "the rest was taken up or changed meanwhile";
      answer.classList.add("bad-text");
      answer.textContent = `${told.count ? `Only ${messages}${all}` : `None${all} messages`} could be decided: ${rest}.`
        + `${told.count ? ` These were: ${told.action}, signed ${told.by}.` : ""}`;
    } else {
      answer.classList.add("good-text");
      answer.textContent = `Done: ${told.action}, ${messages}, signed ${told.by}. It is applied within minutes.`;
    }
    form.dataset.done = "true";
    if (form.dataset.result && told.at) { // what becomes of it has a page of its own
      const where = new URLSearchParams({ decided_by: told.by, decided_at: told.at });
      const link = document.createElement("a");
      link.href = `${form.dataset.result}?${where}`;
      link.textContent = "See what becomes of it";
      answer.append(" ", link);
      if (!fewer) {
        window.location.assign(link.href);
      }
    } else if (form.dataset.undo !== undefined) {
      window.location.reload();
    }
  } catch (error) {
    answer.classList.add("bad-text");
    answer.textContent = `Not done: ${error.message}`;
    button.disabled = false;
  }
}

// What a correction changes is shown before it is sent, and what is wrong with it is said.
async function compare(form, order, answer) {
  const place = form.querySelector("[data-difference]");
  try {
    const told = await post(form.dataset.check, {
      filter: order.filter,
      corrected_body: order.corrected_body,
      corrected_headers: order.corrected_headers,
      restore: order.restore === true,
    });
    const lines = [...told.headers, ...(told.difference ?? [[" ", "It is too large to be compared here."]])].map(([kind, text]) => {
      const line = document.createElement("span");
      line.className = { "-": "goes", "+": "comes" }[kind] ?? "";
      line.textContent = `${kind} ${text}\n`;
      return line;
    });
    place.querySelector("pre").replaceChildren(...(lines.length ? lines : ["Nothing."]));
    place.hidden = false;
    answer.textContent = "That is what changes. Press again to send it.";
    return true;
  } catch (error) {
    place.hidden = true;
    answer.classList.add("bad-text");
    answer.textContent = `It can't be sent so: ${error.message}`;
    return false;
  }
}

// Headers that are to be others than they are: by name a value, a type and a value, or null for those left out.
function correctedHeaders(form) {
  const changes = {};
  const names = JSON.parse(form.querySelector("[data-headers]")?.dataset.headers ?? "[]");
  for (const field of form.querySelectorAll("[data-header]")) {
    if (field.value !== field.defaultValue) {
      changes[names[field.dataset.header]] = field.value;
    }
  }
  for (const box of form.querySelectorAll("[data-without]:checked")) {
    changes[names[box.dataset.without]] = null;
  }
  for (const row of form.querySelectorAll("[data-new-header]")) {
    const [name, value, kind] = ["name", "value", "type"].map((part) => row.querySelector(`[data-new=${part}]`).value.trim());
    if (name) {
      changes[name] = kind ? [kind, value] : value;
    }
  }
  return changes;
}

function anotherHeader(event) {
  const rows = event.currentTarget.form.querySelectorAll("[data-new-header]");
  const row = rows[rows.length - 1].cloneNode(true);
  row.querySelectorAll("input").forEach((field) => { field.value = ""; });
  rows[rows.length - 1].after(row);
  row.querySelector("input").focus();
}

// --- what people say about failures -------------------------------------------------------------------------
// What said it (`by`) is not to say it twice, as by a double click: not before the answer, nor while the page changes.
async function say(by, endpoint, order, answer, next) {
  by.disabled = true;
  answer.className = "answer";
  try {
    await post(endpoint, order);
    if (next) {
      window.location.assign(next);
    } else {
      window.location.reload();
    }
    window.addEventListener("pagehide", () => { by.disabled = false; }, { once: true }); // whoever comes back may again
  } catch (error) {
    answer.classList.add("bad-text");
    answer.textContent = `Not done: ${error.message}`;
    by.disabled = false;
  }
}

function issue(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const order = JSON.parse(form.dataset.issue);
  for (const field of form.querySelectorAll("input, select")) {
    if (field.tagName === "SELECT" || field.name === "comment" || field.name === "ignored_until") {
      if (field.value) { // left alone says nothing
        order[field.name] = written(field);
      }
    } else if (field.value !== field.defaultValue) {
      order[field.name] = field.value;
    }
  }
  say(submitter(form), form.dataset.endpoint, order, form.querySelector(".answer"));
}

// A form, or a button, that says one thing: its fields and what is said already.
function tell(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const order = JSON.parse(form.dataset.order);
  for (const field of form.querySelectorAll("input, select, textarea")) {
    if (field.name && (field.type !== "radio" || field.checked)) {
      order[field.name] = written(field);
    }
  }
  say(submitter(form), form.dataset.endpoint, order, form.querySelector(".answer"), form.dataset.next);
}

// --- a table that is worked through with keys ----------------------------------------------------------------
function keys(event) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("textarea, select, input:not([type=checkbox])")) {
    return;
  }
  const here = rows.findIndex((row) => row.classList.contains("here"));
  const go = (to) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
    rows.forEach((one) => one.classList.toggle("here", one === row));
    row.querySelector(".what a").focus();
    row.scrollIntoView({ block: "nearest" });
  };
  if (event.key === "j") {
    go(here + 1);
  } else if (event.key === "k") {
    go(here < 0 ? 0 : here - 1);
  } else if (event.key === "x" && here >= 0) {
    rows[here].querySelector("[data-pick]")?.click();
  } else if (event.key === "Enter" && here >= 0 && !event.target.closest("a, button")) {
    rows[here].querySelector(".what a").click();
  } else {
    return;
  }
  event.preventDefault();
}

// --- what is under way looks again by itself, but never while somebody writes, picks or waits for an answer ---
function refresh(seconds) {
  window.setTimeout(() => {
    const busy = unanswered || document.hidden || document.querySelector("[data-pick]:checked, details[open] form")
      || document.activeElement.closest("input, textarea, select");
    if (busy) {
      refresh(seconds);
    } else {
      window.location.reload();
    }
  }, seconds * 1000);
}

document.addEventListener("DOMContentLoaded", () => {
  document.addEventListener("click", follow);
  moments();
  fields();
  document.querySelectorAll("form").forEach((form) => form.addEventListener("formdata", submitted));
  document.querySelectorAll("form.picked").forEach((form) => {
    form.addEventListener("change", (event) => {
      if (event.target.matches("[data-pick-all]")) {
        form.querySelectorAll("[data-pick]").forEach((box) => { box.checked = event.target.checked; });
      }
      picked(form);
    });
    picked(form); // the browser may remember what was picked
  });
  document.querySelectorAll("form.decision").forEach((form) => form.addEventListener("submit", decide));
  document.querySelectorAll("[data-locked=yes]").forEach((field) => { // what is masked or binary goes as it is
    field.disabled = true;
    field.title = "Locked: it goes as it is";
  });
  document.querySelectorAll("[data-another-header]").forEach((button) => button.addEventListener("click", anotherHeader));
  document.querySelectorAll("form.issue").forEach((form) => form.addEventListener("submit", issue));
  document.querySelectorAll("form.say").forEach((form) => form.addEventListener("submit", tell));
  document.querySelectorAll("[data-say]").forEach((button) => button.addEventListener("click", () => {
    const answer = document.createElement("span");
    button.after(answer);
    say(button, button.dataset.endpoint, JSON.parse(button.dataset.say), answer);
  }));
  document.querySelectorAll("[data-fill]").forEach((choice) => choice.addEventListener("change", () => {
    choice.form.elements[choice.dataset.fill].value = wall(new Date(`${choice.value}Z`));
  }));
  const visited = document.querySelector("[data-visit]");
  if (visited) {
    post(visited.dataset.visit, {}).catch(() => {}); // only what is shown next time depends on it
  }
  // A preset and a pair of times say the same twice: the last one chosen counts.
  document.querySelectorAll("[data-past]").forEach((past) => {
    const ends = past.form.querySelectorAll(FIELDS);
    past.addEventListener("change", () => ends.forEach((end) => { end.value = ""; }));
    ends.forEach((end) => end.addEventListener("change", () => { past.value = ""; }));
  });
  document.querySelectorAll("[data-set-status]").forEach((choice) => choice.addEventListener("change", () => {
    const form = choice.form;
    const failures = [...form.querySelectorAll("[data-pick]:checked")].map((box) => box.value);
    if (choice.value && failures.length) {
      say(choice, form.dataset.issues, { failures, status: choice.value }, form.querySelector(".answer"));
    }
  }));
  document.addEventListener("keydown", keys);
  const moving = document.querySelector("[data-refresh]");
  if (moving) {
    refresh(Number(moving.dataset.refresh));
  }
  // Within a frame a field that asks for the focus doesn't get it.
  const first = document.querySelector("[data-first]");
  if (first) {
    window.focus();
    first.focus();
  }
  document.querySelectorAll("[data-back]").forEach((link) => link.addEventListener("click", (event) => {
    if (window.history.length > 1) {
      event.preventDefault();
      window.history.back();
    }
  }));
  // A slash goes to the search field, as in many tools.
  document.addEventListener("keydown", (event) => {
    const writing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !writing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("word").focus();
    }
  });
});
