// Runs queries on all connections at once for a time, and measures them.

const NS_PER_SECOND = 1e9;

const EPOCH = process.hrtime.bigint();

// Counted from the start of the program: a plain number then holds each nanosecond exactly.
const now = () => Number(process.hrtime.bigint() - EPOCH);

/** Each of `queries` runs one query on a connection of its own, and gives its number of rows. */
export async function measure(queries, warmupSeconds, seconds) {
  await run(queries, warmupSeconds);
  const cpuBefore = process.cpuUsage();
  const timed = await run(queries, seconds);
  const cpu = process.cpuUsage(cpuBefore);
  return {
    queries: timed.latencies.length,
    rows: timed.rows,
    seconds: (timed.finished - timed.start) / NS_PER_SECOND,
    cpu_seconds: (cpu.user + cpu.system) / 1e6,
    latencies_ns: timed.latencies,
  };
}

async function run(queries, seconds) {
  const start = now();
  const end = start + Math.round(seconds * NS_PER_SECOND);
  const state = { start, end, rows: 0, latencies: [], failure: null };
  await Promise.all(queries.map((query) => loop(query, state)));
  if (state.failure) {
    throw state.failure;
  }
  state.finished = now();
  return state;
}

// A failure is kept and not thrown: it tells all the loops to stop, and each of them ends in order.
async function loop(query, state) {
  try {
    for (let began = now(); began < state.end && !state.failure; began = now()) {
      const rows = await query();
      state.latencies.push(now() - began);
      state.rows += rows;
    }
  } catch (error) {
    state.failure ??= error;
  }
}
