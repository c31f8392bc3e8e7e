// Everything here is a convenience: each page reads and acts without it.
"use strict";

const root = document.documentElement;
root.classList.add("js"); // what needs a script is drawn
const kept = (name, where = "localStorage") => { try { return self[where].getItem(name); } catch { return null; } };
const keep = (name, value, where = "localStorage") => { try { self[where].setItem(name, value); } catch { /* it lasts as long as the page */ } };

// ---------------------------------------------------------------------------------------------- theme and zone

if (kept("treadle-theme")) root.dataset.theme = kept("treadle-theme");

const pad = (number) => String(number).padStart(2, "0");
const local = () => kept("treadle-zone") === "local";

function told(at) {
  const zone = local() ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
  const here = local() ? at : new Date(at.getTime() + at.getTimezoneOffset() * 60000);
  const day = `${here.getFullYear()}-${pad(here.getMonth() + 1)}-${pad(here.getDate())}`;
  return { zone, day, clock: `${pad(here.getHours())}:${pad(here.getMinutes())}:${pad(here.getSeconds())}` };
}

function tellTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const { zone, day, clock } = told(at);
    time.title = `${day} ${clock} ${zone}`;
    if (time.dataset.t === "clock") time.textContent = time.textContent.includes("-") ? `${day} ${clock.slice(0, 5)}` : clock;
  }
  for (const button of document.querySelectorAll("[data-zone]")) button.textContent = local() ? "your zone" : "UTC";
}

// ---------------------------------------------------------------------------------------------- clicks

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches("[data-theme-toggle]")) {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep("treadle-theme", root.dataset.theme);
  }
  if (button.matches("[data-zone]")) {
    keep("treadle-zone", local() ? "utc" : "local");
    tellTimes(document);
  }
  if (button.matches("[data-copy]")) {
    navigator.clipboard?.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  }
  if (button.matches("[data-help]")) document.getElementById("help").showModal();
});

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches(".c-pick input")) {
    box.closest("tr").classList.toggle("sel", box.checked);
    if (!box.checked) unpickPage();
    tellLive();
  }
  if (box.matches("[data-pick-all]")) {
    for (const one of document.querySelectorAll(".c-pick input")) {
      one.checked = box.checked;
      one.closest("tr").classList.toggle("sel", box.checked);
    }
    tellLive();
  }
});

// The box that stands for the whole page is not ticked when a row is not.
const unpickPage = () => { for (const box of document.querySelectorAll("[data-pick-all]")) box.checked = false; };

// A form that asks the server while somebody types: its answer replaces the parts that are marked data-check.
let asked;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-checks]");
  if (!form) return;
  clearTimeout(asked);
  asked = setTimeout(async () => {
    const mine = asked;
    const answer = await fetch(form.dataset.checks, { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
    if (!answer || mine !== asked || answer.redirected || !answer.headers.get("content-type")?.startsWith("text/html")) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-check]")) {
      const made = fresh.querySelector(`[data-check="${CSS.escape(part.dataset.check)}"]`);
      if (!made || part.isEqualNode(made)) continue;
      part.replaceWith(document.adoptNode(made));
      const field = made.dataset.of && form.querySelector(`[name="${CSS.escape(made.dataset.of)}"][aria-describedby]`);
      if (field) field.setAttribute("aria-invalid", made.querySelector(".err") !== null);
    }
    tellTimes(form);
  }, 300);
});

// The page that was asked for comes late: say so, and let the old one stay.
let late;
addEventListener("beforeunload", () => { late = setTimeout(() => root.classList.add("loading"), 300); });
addEventListener("pageshow", () => { clearTimeout(late); root.classList.remove("loading"); });

// ---------------------------------------------------------------------------------------------- live values

const EVERY = 2000; // milliseconds between two loads at least
let since, out = false, loading = false, wanted = false, last = 0, cost = 0;

// Somebody selects, types or is asked something, or nobody looks: nothing changes meanwhile.
function held() {
  const open = document.querySelector(".c-pick input:checked, [data-holds], dialog[open]") !== null;
  const typing = document.activeElement?.matches("main input:not([type=checkbox]), main select, main textarea") ?? false;
  return document.hidden || open || typing || performance.getEntriesByType("navigation")[0]?.responseStatus >= 400; // refused: it would be again
}

function tellLive() {
  const line = document.getElementById("live");
  if (!line) return;
  line.classList.toggle("away", out || since !== undefined);
  const word = out ? "Signed out" : since !== undefined ? "Reconnecting" : held() ? "Held" : "Live";
  const from = word === "Reconnecting" ? ` since ${told(new Date(since)).clock}` : "";
  write(line.querySelector("[data-live-word]"), word);
  write(line.querySelector("[data-live-more]"), word === "Live" ? "" : `${from}, values as of`);
  line.title = out ? "your session has ended; what you send is kept, and asks you to sign in" : word === "Held" ? "nothing changes while rows are selected or a form is open" : "";
  const link = line.querySelector("[data-sign-in]");
  if (link) link.hidden = !out;
  if (link && out) link.search = new URLSearchParams({ next: location.pathname.slice(link.pathname.length - "/login".length) + location.search });
  if (since === undefined) for (const one of document.querySelectorAll("[data-unsent]")) write(one, "The server is back; nothing was sent yet.");
}

function write(element, text) { if (element.textContent !== text) element.textContent = text; }

// A form that nobody would take stays, with what is typed in it.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (since === undefined || out || !form.matches("main form[method=post]")) return;
  event.preventDefault();
  const alert = form.querySelector("[data-unsent]") ?? form.appendChild(document.createElement("p"));
  for (const [name, value] of [["class", "bad"], ["role", "alert"], ["data-unsent", ""]]) alert.setAttribute(name, value);
  alert.textContent = `The server does not answer since ${told(new Date(since)).clock}; nothing was sent. Try again when it is back.`;
  retry();
});

// Make an element like another one, and touch only what differs: focus, selection and scroll stay.
function morph(old, made) {
  if (old.isEqualNode(made)) return;
  if (old.nodeType !== 1 || old.tagName !== made.tagName || old.namespaceURI !== made.namespaceURI) {
    old.replaceWith(made.cloneNode(true));
    return;
  }
  const current = old.classList.contains("cur"); // the row that the keys have come to
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  if (current) old.classList.add("cur");
  if (old.hasAttribute("data-rows")) { morphRows(old, made); return; }
  const [was, is] = [[...old.childNodes], [...made.childNodes]];
  is.forEach((child, place) => {
    if (!was[place]) old.append(child.cloneNode(true));
    else if (child.nodeType === 3 && was[place].nodeType === 3) {
      if (was[place].data !== child.data) { was[place].data = child.data; tint(old); }
    } else morph(was[place], child);
  });
  was.slice(is.length).forEach((child) => child.remove());
}

// Rows never come or go while somebody looks: a new one is counted, one that left is dimmed.
function morphRows(old, made) {
  const fresh = new Map([...made.children].map((row) => [row.id, row]));
  const there = new Set([...old.children].map((row) => row.id));
  for (const row of old.children) {
    if (fresh.has(row.id)) morph(row, fresh.get(row.id));
    else row.classList.add("left");
  }
  let newer = 0;
  for (const id of fresh.keys()) { // of a list that is not by time, a new one may stand anywhere
    if (!there.has(id)) newer += 1;
    else if (old.dataset.rows !== "any") break;
  }
  const line = document.querySelector("[data-newer]");
  if (line) {
    line.hidden = newer === 0;
    line.querySelector("b").textContent = newer;
  }
}

function tint(element) {
  element.classList.remove("fresh");
  void element.offsetWidth;
  element.classList.add("fresh");
}

async function load() {
  wanted = true;
  if (loading || held()) { tellLive(); return; }
  const wait = last + Math.max(EVERY, 10 * cost) - Date.now();
  loading = true;
  if (wait > 0) await new Promise((done) => setTimeout(done, wait));
  try {
    if (held()) return;
    wanted = false;
    const began = Date.now();
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    cost = Date.now() - began;
    if (away(answer) || answer.redirected && new URL(answer.url).pathname.endsWith("/login")) { lost(); return; }
    if (!answer.ok) return;
    [since, out] = [undefined, false];
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (held()) return;
    tellTimes(made);
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = made.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (fresh) morph(part, fresh);
    }
    const [clock, now] = [document, made].map((one) => one.querySelector("#live time"));
    if (clock && now) clock.replaceWith(document.adoptNode(now));
  } catch { lost(); } finally {
    last = Date.now();
    loading = false;
    tellLive();
  }
}

// ---------------------------------------------------------------------------------------------- the stream

// A browser has six connections to a server. So all its windows share one stream: the one that holds the lock opens it,
// and tells the others. A window that nobody sees has none, and asks for nothing.
const EVENTS = document.body.dataset.events, POLLS = document.body.hasAttribute("data-poll");
const SOON = 5000, LATEST = 60000; // milliseconds until the server is asked again
const windows = !POLLS && navigator.locks && self.BroadcastChannel ? new BroadcastChannel(`treadle-events ${EVENTS}`) : null;
let stream, turn, mine = false, again, pause = SOON;

const away = (answer) => !answer || answer.status >= 502;

function share(news = false) {
  tellLive();
  if (mine) windows?.postMessage({ since, out, news });
}

if (windows) windows.onmessage = ({ data }) => {
  if (data === "hello") { if (mine) share(); return; }
  [since, out] = [data.since, data.out];
  if (data.news) load();
  tellLive();
};

function connect() {
  stream?.close();
  stream = new EventSource(EVENTS);
  stream.addEventListener("status", () => {
    [since, out, pause] = [undefined, false, SOON];
    share(true);
    load();
  });
  stream.addEventListener("trouble", () => { since ??= Date.now(); share(); }); // the store is away
  stream.addEventListener("error", () => { stream.close(); lost(); });
}

// Ask whether the server answers, and whether it still knows us.
async function ask() {
  const answer = await fetch(EVENTS.replace(/events$/, "about")).catch(() => null);
  if (document.hidden) return;
  out = answer?.status === 401;
  since = away(answer) ? since ?? Date.now() : undefined;
  share();
}

// The stream has ended, or a page did not come: say what is known, and ask again later, less and less often.
async function lost() { if (!document.hidden) { await ask(); later(); } }

function later() {
  clearTimeout(again);
  if (!document.hidden) again = setTimeout(retry, pause);
  pause = Math.min(2 * pause, LATEST);
}

async function retry() {
  clearTimeout(again);
  await ask();
  if (out || since !== undefined) later();
  else if (mine) connect();
  else { pause = SOON; load(); }
}

// Wait for the turn of this window, which lasts until it is hidden.
function begin() {
  if (turn || POLLS) return;
  turn = new AbortController();
  const { signal } = turn;
  const lead = () => new Promise((done) => {
    if (signal.aborted) { done(); return; }
    mine = true;
    signal.addEventListener("abort", () => { mine = false; stream?.close(); done(); });
    connect();
  });
  if (!windows) return lead();
  navigator.locks.request(`treadle-events ${EVENTS}`, { signal }, lead).catch(() => { /* hidden before its turn came */ });
  windows.postMessage("hello");
}

function seen() {
  tellLive();
  if (document.hidden) { clearTimeout(again); turn?.abort(); turn = undefined; return; }
  pause = SOON;
  begin();
  if (out || since !== undefined) retry(); else load();
}

function listen() {
  if (!document.querySelector("#live")) return;
  const often = () => 1000 * (document.querySelector("[data-every]")?.dataset.every ?? 15); // seconds: what changes without an event
  setInterval(() => { if (!out && since === undefined && (wanted || Date.now() - last > often())) load(); tellLive(); }, 1000);
  document.addEventListener("visibilitychange", seen);
  if (!document.hidden) begin();
  tellLive();
}

// ---------------------------------------------------------------------------------------------- keys

// One key, one act; never while somebody types, and never an act without its preview.
let going = false;
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return; // its keys are the browser's own
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) return event.key === "Escape" && leave(event.target);
  if (going) {
    going = false;
    document.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.findIndex((row) => row.classList.contains("cur"));
  const move = (to) => {
    if (!rows[to]) return;
    rows[at]?.classList.remove("cur");
    rows[to].classList.add("cur");
    rows[to].scrollIntoView({ block: "nearest" });
  };
  const open = () => rows[at]?.querySelector("a")?.click();
  const act = (key) => {
    keepRow(rows[at]);
    (rows[at]?.querySelector(`[data-key=${key}]`) ?? document.querySelector(`[data-key=${key}]`))?.click();
  };
  const keys = {
    "/": () => document.querySelector("#q")?.focus(),
    "?": () => document.getElementById("help")?.showModal(),
    g: () => { going = true; },
    j: () => move(at + 1),
    k: () => move(at - 1),
    x: () => rows[at]?.querySelector("input")?.click(),
    o: open,
    r: () => act("r"),
    p: () => act("p"),
    Escape: () => {
      for (const box of document.querySelectorAll(".c-pick input:checked")) box.click();
      unpickPage();
      document.querySelector("[data-close]")?.click();
    },
  };
  if (event.key === "Enter" && at >= 0 && !event.target.matches("a, button, summary, input")) keys.Enter = open;
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

// A field that somebody has changed is left first; then, the form is closed.
function leave(field) {
  const panel = field.closest("[data-holds]");
  if (panel && "defaultValue" in field && field.value !== field.defaultValue) field.blur();
  else if (panel) document.querySelector("[data-close]")?.click();
}

// What is opened from a row leads back to it when it is closed.
const keepRow = (row) => keep("treadle-row", row?.id ?? "", "sessionStorage");

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  const row = kept("treadle-row", "sessionStorage");
  if (link.matches("[data-close]")) { if (row) keep("treadle-row", `back ${row}`, "sessionStorage"); }
  else if (link.closest("[data-row]")) keepRow(link.closest("[data-row]"));
});

// The keys begin in the form that is open, unless the address names another place; or in the row that it was opened from.
function settle() {
  const panel = document.querySelector("[data-holds]");
  const place = document.getElementById(location.hash.slice(1)), preventScroll = place !== null;
  if (panel) {
    if (place && !place.contains(panel) && !panel.contains(place)) return;
    const fields = [...panel.querySelectorAll("input, select, textarea")].filter((one) => one.type !== "hidden" && !one.disabled && one.checkVisibility());
    const first = fields.find((one) => one.getAttribute("aria-invalid") === "true") ?? fields[0] ?? panel.querySelector("h2, h3") ?? panel;
    if (!fields.includes(first)) first.tabIndex = -1;
    return first.focus({ preventScroll });
  }
  const row = document.getElementById((kept("treadle-row", "sessionStorage") ?? "").split("back ")[1] ?? "");
  keepRow();
  row?.classList.add("cur");
  row?.querySelector("a")?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

tellTimes(document);
settle();
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
listen();
