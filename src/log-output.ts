/** Standard output as the log's: whoever reads it may be slow, stop for a while or be gone, and nothing waits for them. */

import { constants, fstatSync, openSync, write, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { isatty } from "node:tty";

export interface LogOutput {
  /** Takes whole lines of JSON and does not wait. */
  write(lines: string): void;
  /** What the reader, or the file, has not taken yet. */
  readonly waitingBytes: number;
  readonly droppedLines: number;
  /** Waits until all has been taken, but not for a reader that has stopped. */
  end(): Promise<void>;
}

/**
 * A reader that has stopped for a minute or two of full load loses nothing. One that has stopped for good must not take
 * the process with it: beyond this lines are dropped, and counted.
 */
const maxWaitingBytes = 256 * 1024 * 1024;
/** A reader that takes nothing for so long at the end is not waited for. */
const endPatienceMs = 2_000;
const lookMs = 50;
const filePieceLength = 1024 * 1024;
/** After a write that failed: on a disk that is full each line would be tried. */
const retryMs = 100;
/** A terminal without room is tried so often at the exit. */
const exitTries = 200;
const exitPauseMs = 10;
/** Characters. A reader that takes so much in `endPatienceMs` is not one that has stopped. */
const pieceLength = 16 * 1024;

/** For a terminal laid out for a person, otherwise JSON. */
export function openLogOutput(): LogOutput {
  const output = fstatSync(1);
  if (output.isFIFO() || output.isSocket()) return streamOutput(output.isFIFO());
  return fileOutput(isatty(1));
}

/**
 * A pipe or a socket. Written to in the ordinary way, a full one holds a thread, and in the end the process' exit; so
 * it is the event loop's. A pipe is opened anew for that: what is set on it would otherwise hold for standard
 * error too, and for every process that shares it.
 *
 * One piece at a time, so that it can be told what has been taken: a stream writes all that waits at once, and says so when
 * the last of it is gone.
 */
function streamOutput(isPipe: boolean): LogOutput {
  let opened: Socket | undefined;
  let waiting: string[] = [];
  let waitingBytes = 0;
  let isWriting = false;
  let isGone = false;
  let droppedLines = 0;
  let untold = 0;

  function open(): Socket {
    const stream = new Socket({ fd: isPipe ? anewOrShared() : 1, readable: false, writable: true });
    // The reader is gone. There is nobody to tell; the write that met it counts what is lost.
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
        untold += linesIn(lines);
        return;
      }
      if (untold > 0) {
        const said = `${JSON.stringify({ level: 40, lines: untold, msg: "lines of the log were dropped" })}\n`;
        waiting.push(said);
        waitingBytes += said.length;
        untold = 0;
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
      let movedAt = performance.now();
      while (left > 0 && performance.now() - movedAt < endPatienceMs) {
        // What was taken while this process was too busy to look is seen before time is counted.
        await new Promise((resolve) => setTimeout(() => setImmediate(resolve), lookMs));
        if (waitingBytes < left) movedAt = performance.now();
        left = waitingBytes;
      }
    },
  };
}

/** A pipe may belong to another user, who started this one: then it cannot be opened, only used. */
function anewOrShared(): number {
  try {
    return openSync("/dev/stdout", constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    return 1;
  }
}

/**
 * A file or a terminal. What waits is written out when the process ends, however it does short of being killed; where that
 * fails, as on a disk that is full, it is lost: an end that waited for room would not be one.
 */
function fileOutput(isTerminal: boolean): LogOutput {
  let waiting: string[] = [];
  let waitingBytes = 0;
  /** What a write has left. */
  let left: Buffer | undefined;
  let isWriting = false;
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

  // What is being written then reaches the file by itself.
  process.on("exit", () => {
    while (hasSome()) if (!writeOut(takePiece())) return;
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
      writeNext();
    },
    get waitingBytes() {
      return waitingBytes;
    },
    get droppedLines() {
      return droppedLines;
    },
    async end() {
      const until = performance.now() + endPatienceMs;
      while (isWriting && performance.now() < until) await delay(lookMs);
    },
  };
}

/** Answers whether all of it was taken. */
function writeOut(piece: Buffer): boolean {
  let at = 0;
  for (let tries = 0; at < piece.length && tries < exitTries; tries++) {
    try {
      at += writeSync(1, piece, at);
    } catch (error) {
      // A terminal may have no room for the moment.
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") return false;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, exitPauseMs);
    }
  }
  return at === piece.length;
}

/** Loaded where it is needed only: it takes as long as a tenth of a start. */
function layout(): (lines: string) => string {
  const { prettyFactory } = createRequire(import.meta.url)("pino-pretty") as typeof import("pino-pretty");
  const present = prettyFactory({ colorize: true, translateTime: "SYS:HH:MM:ss.l", singleLine: true });
  return (lines) => lines.trimEnd().split("\n").map(present).join("");
}

const linesIn = (text: string) => text.split("\n").length - 1;
