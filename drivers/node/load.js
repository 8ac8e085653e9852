// Runs queries on all connections at once for a time, and measures them.

import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

const NS_PER_SECOND = 1e9;
const NS_PER_MS = 1e6;

const EPOCH = process.hrtime.bigint();

// Counted from the start of the program: a plain number then holds each nanosecond exactly.
const now = () => Number(process.hrtime.bigint() - EPOCH);

/** Each of `queries` runs one query on a connection of its own, and gives its number of rows. */
export async function measure(queries, { warmup_seconds, seconds, rate }) {
  // As fast as it can also before an open loop, so that every connection has prepared its statements.
  const warmup = await run(queries, closedLoop, warmup_seconds);
  const cpuBefore = process.cpuUsage();
  const timed = await run(queries, rate > 0 ? openLoop : closedLoop, seconds, rate);
  const cpu = process.cpuUsage(cpuBefore);
  return {
    queries: timed.latencies.length,
    rows: timed.rows,
    all_rows: warmup.rows + timed.rows,
    seconds: (timed.finished - timed.start) / NS_PER_SECOND,
    cpu_seconds: (cpu.user + cpu.system) / 1e6,
    unserved: timed.unserved.length,
    latencies_ns: timed.latencies.concat(timed.unserved),
  };
}

async function run(queries, loop, seconds, rate) {
  const start = now();
  const state = {
    start,
    end: start + Math.round(seconds * NS_PER_SECOND),
    interval: NS_PER_SECOND / rate,
    slots: 0,
    rows: 0,
    latencies: [],
    unserved: [],
    failure: null,
  };
  await Promise.all(queries.map((query) => loop(query, state)));
  if (state.failure) {
    throw state.failure;
  }
  state.finished = now();
  return state;
}

async function closedLoop(query, state) {
  for (let began = now(); began < state.end && !state.failure; began = now()) {
    await send(query, state, began);
  }
}

async function openLoop(query, state) {
  for (let due = nextDue(state); due < state.end && !state.failure; due = nextDue(state)) {
    await until(due, state);
    if (now() < state.end) {
      await send(query, state, due);
    } else {
      state.unserved.push(state.end - due);
    }
  }
}

function nextDue(state) {
  const due = state.start + Math.round(state.slots * state.interval);
  state.slots += 1;
  return due;
}

// A timer is late by up to a millisecond, so the last part is waited for turn by turn.
async function until(due, state) {
  const milliseconds = Math.floor((due - now()) / NS_PER_MS) - 1;
  if (milliseconds > 0) {
    await sleep(milliseconds);
  }
  while (now() < due && !state.failure) {
    await nextTurn();
  }
}

// A failure is kept and not thrown: it tells all the loops to stop, and each of them ends in order.
async function send(query, state, since) {
  try {
    const rows = await query();
    state.latencies.push(now() - since);
    state.rows += rows;
  } catch (error) {
    state.failure ??= error;
  }
}
