/** Standard output as the destination of the log. Its reader may be slow, pause or exit; the service never waits for it. */

import { constants, fstatSync, openSync, write, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { isatty } from "node:tty";

export interface LogOutput {
  /** Takes complete lines of JSON without blocking. */
  write(lines: string): void;
  /** Bytes that the reader, or the file, has not accepted yet. */
  readonly waitingBytes: number;
  readonly droppedLines: number;
  /** Waits until everything has been accepted, but not for a reader that has stopped. */
  end(): Promise<void>;
}

/**
 * A reader that pauses for a minute or two of full load loses nothing. One that has stopped for good must not exhaust
 * the process's memory: beyond this size, lines are dropped and counted.
 */
const maxWaitingBytes = 256 * 1024 * 1024;
/** Interval at which it is checked, at the end, whether everything has been written. */
const pollMs = 50;
/**
 * A reader that has accepted nothing at so many checks, which take two seconds, is no longer waited for. They are counted because a
 * clock goes on while this process is suspended, and its reader with it: a suspension delays one check.
 */
const idlePolls = 40;
const filePieceLength = 1024 * 1024;
/** Pause after a failed write: without it, a full disk would make every line attempt a write. */
const retryMs = 100;
/** How often a write to a terminal without room is attempted at exit. */
const exitTries = 200;
const exitPauseMs = 10;
/** Characters. A reader that accepts this much within `idlePolls` does not count as stopped. */
const pieceLength = 16 * 1024;

/** Formats lines for people if standard output is a terminal, and writes JSON otherwise. */
export function openLogOutput(): LogOutput {
  const output = fstatSync(1);
  if (output.isFIFO() || output.isSocket()) return streamOutput(output.isFIFO());
  return fileOutput(isatty(1));
}

/**
 * A pipe or a socket. Ordinary writes to a full one block a thread, and in the end the process's exit, so these go
 * through the event loop. A pipe is reopened for that: the non-blocking flag would otherwise also apply to standard
 * error and to every process that shares the pipe.
 *
 * Written one piece at a time, so that progress is visible: a stream writes everything queued at once, and reports only
 * when the last byte is gone.
 */
function streamOutput(isPipe: boolean): LogOutput {
  let opened: Socket | undefined;
  let waiting: string[] = [];
  let waitingBytes = 0;
  let isWriting = false;
  let isGone = false;
  let droppedLines = 0;
  let unreportedLines = 0;

  function open(): Socket {
    const stream = new Socket({ fd: isPipe ? openStdout() : 1, readable: false, writable: true });
    // The reader is gone. There is nobody to report it to; the callback of the failed write counts the lost lines.
    stream.on("error", () => {});
    return stream.unref();
  }

  function writeNext(stream: Socket): void {
    if (isWriting || waiting.length === 0) return;
    isWriting = true;
    const piece = takePiece();
    const bytes = Buffer.byteLength(piece);
    stream.write(piece, (error) => {
      isWriting = false;
      waitingBytes -= bytes;
      if (!error) {
        writeNext(stream);
        return;
      }
      isGone = true;
      for (const lines of [piece, ...waiting]) droppedLines += linesIn(lines);
      waiting = [];
      waitingBytes = 0;
    });
  }

  function takePiece(): string {
    let count = 1;
    let length = waiting[0]?.length ?? 0;
    while (count < waiting.length && length < pieceLength) length += waiting[count++]?.length ?? 0;
    return waiting.splice(0, count).join("");
  }

  return {
    write(lines) {
      if (isGone || waitingBytes > maxWaitingBytes) {
        droppedLines += linesIn(lines);
        unreportedLines += linesIn(lines);
        return;
      }
      if (unreportedLines > 0) {
        const notice = `${JSON.stringify({ level: 40, lines: unreportedLines, msg: "log lines were dropped" })}\n`;
        waiting.push(notice);
        waitingBytes += notice.length;
        unreportedLines = 0;
      }
      waiting.push(lines);
      waitingBytes += Buffer.byteLength(lines);
      opened ??= open();
      writeNext(opened);
    },
    get waitingBytes() {
      return waitingBytes;
    },
    get droppedLines() {
      return droppedLines;
    },
    async end() {
      let left = waitingBytes;
      for (let idle = 0; left > 0 && idle < idlePolls; idle++) {
        // After the timer, setImmediate lets pending write callbacks run first: they may have waited while this process
        // was busy.
        await new Promise((resolve) => setTimeout(() => setImmediate(resolve), pollMs));
        if (waitingBytes < left) idle = 0;
        left = waitingBytes;
      }
    },
  };
}

/** A pipe may belong to another user, who started this process: then it cannot be reopened, only used. */
function openStdout(): number {
  try {
    return openSync("/dev/stdout", constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    return 1;
  }
}

/**
 * A file or a terminal. Pending lines are written when the process ends, by whatever means short of SIGKILL. If that
 * fails, as on a full disk, they are lost: an exit that waited for space might never end.
 */
function fileOutput(isTerminal: boolean): LogOutput {
  let waiting: string[] = [];
  let waitingBytes = 0;
  /** What the last write left unwritten. */
  let left: Buffer | undefined;
  let isWriting = false;
  let isExiting = false;
  let failedAt = Number.NEGATIVE_INFINITY;
  let droppedLines = 0;
  const laidOut = isTerminal ? layout() : (lines: string) => lines;

  function writeNext(): void {
    if (isWriting || !hasSome() || performance.now() - failedAt < retryMs) return;
    isWriting = true;
    const piece = takePiece();
    write(1, piece, 0, piece.length, null, (error, written) => {
      isWriting = false;
      if (!error) waitingBytes -= written;
      if (error) failedAt = performance.now();
      left = error ? piece : written < piece.length ? piece.subarray(written) : undefined;
      writeNext();
    });
  }

  const hasSome = () => left !== undefined || waiting.length > 0;

  function takePiece(): Buffer {
    if (left !== undefined) {
      const piece = left;
      left = undefined;
      return piece;
    }
    let count = 0;
    let length = 0;
    while (count < waiting.length && length < filePieceLength) length += waiting[count++]?.length ?? 0;
    const lines = count === waiting.length ? waiting : waiting.slice(0, count);
    waiting = count === waiting.length ? [] : waiting.slice(count);
    return Buffer.from(lines.join(""));
  }

  const writeAll = () => {
    while (hasSome()) if (!writeOut(takePiece())) return;
  };

  // A piece whose write is in flight at exit reaches the file without this.
  process.on("exit", () => {
    isExiting = true;
    writeAll();
  });

  return {
    write(lines) {
      if (waitingBytes > maxWaitingBytes) {
        droppedLines += linesIn(lines);
        return;
      }
      const text = laidOut(lines);
      waiting.push(text);
      waitingBytes += Buffer.byteLength(text);
      // A write that a thread has not begun when the event loop ends is cancelled.
      if (isExiting) writeAll();
      else writeNext();
    },
    get waitingBytes() {
      return waitingBytes;
    },
    get droppedLines() {
      return droppedLines;
    },
    async end() {
      for (let polls = 0; isWriting && polls < idlePolls; polls++) await delay(pollMs);
    },
  };
}

/** Returns whether all of it was written. */
function writeOut(piece: Buffer): boolean {
  let at = 0;
  for (let tries = 0; at < piece.length && tries < exitTries; tries++) {
    try {
      at += writeSync(1, piece, at);
    } catch (error) {
      // A terminal may have no room at the moment.
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") return false;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, exitPauseMs);
    }
  }
  return at === piece.length;
}

/** Loaded only for a terminal: it takes a tenth of a start. */
function layout(): (lines: string) => string {
  const { prettyFactory } = createRequire(import.meta.url)("pino-pretty") as typeof import("pino-pretty");
  const present = prettyFactory({ colorize: true, translateTime: "SYS:HH:MM:ss.l", singleLine: true });
  return (lines) => lines.trimEnd().split("\n").map(present).join("");
}

const linesIn = (text: string) => text.split("\n").length - 1;
