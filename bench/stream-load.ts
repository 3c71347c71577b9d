/**
 * Inbound messages over gRPC: encoded before the round, sent as they are over HTTP/2, and the receipts counted
 * where they lie. A gRPC client that builds and parses every message would take more than what it measures.
 */

import http2 from "node:http2";
import { type LoadResult, Tally } from "./load.ts";

/** One gRPC message: a flag of one byte, its length in four, a `StreamInboundMessagesRequest`. */
export interface EncodedGroup {
  readonly frame: Uint8Array;
  readonly messages: number;
}

export const frameHeadBytes = 5;

export interface StreamRound {
  readonly next: () => EncodedGroup | undefined;
  readonly milliseconds: number;
}

export interface StreamLoadOptions {
  readonly streams: number;
  /** Groups without all their receipts, on each stream. */
  readonly groupsUnderWay: number;
}

const path = "/phoneproof.v1.InboundMessageService/StreamInboundMessages";
const streamWindowBytes = 1024 * 1024;
const sessionWindowBytes = 4 * 1024 * 1024;

export class StreamLoad {
  readonly #session: http2.ClientHttp2Session;
  readonly #streams: Stream[];

  private constructor(session: http2.ClientHttp2Session, streams: Stream[]) {
    this.#session = session;
    this.#streams = streams;
  }

  /** `address` is `host:port`. */
  static async open(address: string, token: string, options: StreamLoadOptions): Promise<StreamLoad> {
    const session = http2.connect(`http://${address}`, {
      settings: { initialWindowSize: streamWindowBytes },
    });
    await new Promise((resolve, reject) => {
      session.once("connect", resolve);
      session.once("error", reject);
    });
    session.setLocalWindowSize(sessionWindowBytes);
    const streams = Array.from({ length: options.streams }, () => {
      const call = session.request({
        ":method": "POST",
        ":path": path,
        "content-type": "application/grpc",
        te: "trailers",
        authorization: `Bearer ${token}`,
      });
      return new Stream(call, options.groupsUnderWay);
    });
    return new StreamLoad(session, streams);
  }

  /** Sends until the time is over or nothing is left, and waits for the last receipts. */
  async run(round: StreamRound): Promise<LoadResult> {
    const tally = new Tally();
    const deadline = performance.now() + round.milliseconds;
    await Promise.all(this.#streams.map((stream) => stream.run(round, tally, deadline)));
    return tally.result();
  }

  close(): void {
    for (const stream of this.#streams) stream.close();
    this.#session.destroy();
  }
}

interface Group {
  readonly sentAt: number;
  readonly messages: number;
  unanswered: number;
}

class Stream {
  readonly #call: http2.ClientHttp2Stream;
  readonly #groupsUnderWay: number;
  readonly #underWay: Group[] = [];
  #partial: Buffer = Buffer.alloc(0);
  #onReceipts: (receipts: number) => void = () => {};
  #onLost: (error: Error) => void = () => {};

  constructor(call: http2.ClientHttp2Stream, groupsUnderWay: number) {
    this.#call = call;
    this.#groupsUnderWay = groupsUnderWay;
    call.on("data", (piece: Buffer) => this.#receive(piece));
    call.on("error", (error) => this.#onLost(error));
    call.on("trailers", (trailers) => {
      this.#onLost(new Error(`the stream ended: ${trailers["grpc-status"]} ${trailers["grpc-message"]}`));
    });
    call.on("close", () => this.#onLost(new Error("the stream was closed by the server")));
  }

  run({ next }: StreamRound, tally: Tally, deadline: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const fill = (now: number) => {
        while (this.#underWay.length < this.#groupsUnderWay) {
          const group = now < deadline ? next() : undefined;
          if (group === undefined) break;
          this.#underWay.push({ sentAt: now, messages: group.messages, unanswered: group.messages });
          this.#call.write(group.frame);
        }
        if (this.#underWay.length === 0) resolve();
      };
      this.#onLost = reject;
      this.#onReceipts = (receipts) => {
        const now = performance.now();
        for (let left = receipts; left > 0; ) {
          const group = this.#underWay[0];
          if (group === undefined) {
            reject(new Error("there were more receipts than messages"));
            return;
          }
          const taken = Math.min(left, group.unanswered);
          left -= taken;
          group.unanswered -= taken;
          if (group.unanswered > 0) continue;
          this.#underWay.shift();
          tally.add(now - group.sentAt, group.messages);
        }
        fill(now);
      };
      fill(performance.now());
    });
  }

  close(): void {
    this.#onLost = () => {};
    this.#call.close(http2.constants.NGHTTP2_CANCEL);
  }

  #receive(piece: Buffer): void {
    const received = this.#partial.length === 0 ? piece : Buffer.concat([this.#partial, piece]);
    let receipts = 0;
    let position = 0;
    while (received.length - position >= frameHeadBytes) {
      const end = position + frameHeadBytes + received.readUInt32BE(position + 1);
      if (end > received.length) break;
      try {
        receipts += countVerified(received, position + frameHeadBytes, end);
      } catch (error) {
        this.#onLost(error as Error);
        return;
      }
      position = end;
    }
    this.#partial = received.subarray(position);
    if (receipts > 0) this.#onReceipts(receipts);
  }
}

/** Tags of protobuf fields: their number and, below it, three bits of wire type. */
const receiptTag = (1 << 3) | 2;
const messageIdTag = (1 << 3) | 2;
const outcomeTag = 2 << 3;
const verified = 1;

/** The receipts in a `StreamInboundMessagesResponse`; every one must say VERIFIED. */
function countVerified(bytes: Buffer, start: number, end: number): number {
  let count = 0;
  for (let position = start; position < end; count++) {
    if (bytes[position] !== receiptTag) throw new Error("the answer holds something else than receipts");
    const [length, receipt] = varint(bytes, position + 1);
    if (bytes[receipt] !== messageIdTag) throw new Error("a receipt without a message id");
    const [idLength, id] = varint(bytes, receipt + 1);
    const outcome = id + idLength;
    if (bytes[outcome] !== outcomeTag || bytes[outcome + 1] !== verified) {
      const messageId = bytes.toString("utf8", id, outcome);
      throw new Error(`the receipt of ${messageId} has the outcome ${bytes[outcome + 1]}, not VERIFIED`);
    }
    position = receipt + length;
  }
  return count;
}

/** The value and the position after it. Two bytes suffice for any receipt. */
function varint(bytes: Buffer, position: number): [number, number] {
  const low = bytes[position] ?? 0;
  if (low < 128) return [low, position + 1];
  return [(low & 127) | ((bytes[position + 1] ?? 0) << 7), position + 2];
}
