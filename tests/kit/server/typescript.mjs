// Drives the daemon client of `@qwen-code/sdk` like a caller: each line is a call, and each response is a line.
//
//     SDK=/where/it/was/unpacked node typescript.mjs
//
// `[method, …arguments]` calls a method of `helpers` if there is one, otherwise of `DaemonClient`.

import readline from 'node:readline';

const { DaemonClient, DaemonSessionClient, asKnownDaemonEvent } = await import(`${process.env.SDK}/dist/daemon/index.js`);
const { negotiateTransport } = await import(`${process.env.SDK}/dist/daemon/transports.js`);

let client, session, following;

const helpers = {
  connect(options) {
    client = new DaemonClient(options);
    session = new DaemonSessionClient({ client, session: { sessionId: 'any' } });
  },
  async negotiate(baseUrl, token) {
    return (await negotiateTransport(baseUrl, token)).type;
  },
  // Follow the session from its last position; return the epoch when the daemon responds.
  follow(options = {}) {
    const stop = new AbortController();
    const events = [];
    let wake = () => {};
    return new Promise((resolve, reject) => {
      const read = async () => {
        const more = { ...options, signal: stop.signal, onEpoch: resolve };
        for await (const event of session.events(more)) {
          events.push({ ...event, known: asKnownDaemonEvent(event) !== undefined });
          wake();
        }
      };
      const ended = read().catch((error) => {
        if (!stop.signal.aborted) reject(error);
      });
      following = { events, stop, ended, until: (then) => (wake = then) };
    });
  },
  // Return the new events up to the first of a type, or the first about a task.
  async until(type, taskId) {
    for (let at = 0; ; at++) {
      while (at >= following.events.length) await new Promise(following.until);
      const event = following.events[at];
      if (event.type === type && (!taskId || event.data.taskId === taskId)) return following.events.splice(0, at + 1);
    }
  },
  async leave() {
    following.stop.abort();
    await following.ended;
    return { id: session.lastEventId, left: following.events };
  },
  // Follow once from the given cursor; return the events up to the first of a type.
  async once(type, options) {
    const events = [];
    for await (const event of client.subscribeEvents('any', options)) {
      events.push(event);
      if (event.type === type) return events;
    }
    return events;
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const [name, ...args] = JSON.parse(line);
  let answer;
  try {
    answer = { result: await (name in helpers ? helpers[name](...args) : client[name](...args)) };
  } catch (error) {
    answer = { error: { name: error.name, message: error.message, status: error.status, body: error.body } };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
