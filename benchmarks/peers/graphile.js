// Graphile Worker with its local queue and batched completion, as its performance page advises.
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");
const fs = require("fs");

const PAYLOAD = { user_id: 12345, template: "welcome", locale: "en" };
const logger = new Logger(() => () => {});
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const tell = (facts) => fs.writeSync(1, JSON.stringify(facts) + "\n");
const starts = [], waits = [];
let reported = 0;

function begin() {
  tell({ ready: true, cpu: cpu() });
  setInterval(() => { if (starts.length !== reported) { reported = starts.length; tell({ ran: reported, cpu: cpu() }); } }, 20);
}

function end(more = {}) {
  const rss = process.resourceUsage().maxRSS * 1024;
  const thin = (values) => { const step = Math.max(1, Math.ceil(values.length / 20000)); return values.filter((_, place) => place % step === 0); };
  tell({ end: true, ran: starts.length, cpu: cpu(), first: starts[0] || 0, last: starts[starts.length - 1] || 0, starts: thin(starts), waits: thin(waits), rss, ...more });
}

async function send(order, pool) {
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  begin();
  const [wall, spent] = [performance.now(), cpu()];
  for (let done = 0; done < order.jobs; ) {
    if (order.role === "pace") {
      await new Promise((go) => setTimeout(go, Math.max(0, wall + (done / order.rate) * 1000 - performance.now())));
      await utils.addJob("sent", { at: now() });
      done += 1;
    } else if (order.how === "bulk") {
      const size = Math.min(1000, order.jobs - done);
      await utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: PAYLOAD })));
      done += size;
    } else {
      await utils.addJob("noop", PAYLOAD);
      done += 1;
    }
    starts.push(now());
  }
  for (let place = 1; place < starts.length; place++) waits.push(starts[place] - starts[place - 1]);
  end({ seconds: (performance.now() - wall) / 1000, spent: cpu() - spent, grew: 0 });
  process.stdin.on("end", () => process.exit(0)); // the server's process is still to be looked at
  process.stdin.resume();
}

async function work(pool) {
  const worker = { concurrentJobs: 24, maxPoolSize: 10, pollInterval: 2000, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const taskList = {
    noop: async () => { starts.push(now()); },
    sent: async (payload) => { const moment = now(); starts.push(moment); waits.push(moment - payload.at); },
  };
  await run({ pgPool: pool, logger, noHandleSignals: true, preset: { worker }, taskList });
  begin();
}

async function main(order) {
  const pool = new Pool({ connectionString: order.url, max: 10 });
  if (order.role === "setup") { await runMigrations({ pgPool: pool, logger }); begin(); end(); process.exit(0); }
  if (order.role === "worker") { process.stdin.on("end", () => { end(); process.exit(0); }); process.stdin.resume(); return work(pool); }
  return send(order, pool);
}

let read = "";
process.stdin.on("data", function first(part) {
  read += part;
  if (!read.includes("\n")) return;
  process.stdin.off("data", first);
  main(JSON.parse(read)).catch((error) => { tell({ error: `graphile: ${error.message}` }); process.exit(1); });
});
