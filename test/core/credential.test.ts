import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  bearerCredential,
  type CredentialKind,
  digestCredential,
  newCredential,
  parseCredential,
} from "../../src/core/credential.ts";

const kinds: CredentialKind[] = ["live", "test", "svc"];
const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/** CRC-32 (IEEE 802.3) bit by bit. */
function crc32(text: string): number {
  let crc = 0xffffffff;
  for (const byte of Buffer.from(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}

describe("a new credential", () => {
  test.for(kinds)("of kind %s has the right format, and ends in the CRC-32 of the rest", (kind) => {
    for (let round = 0; round < 200; round++) {
      const credential = newCredential(kind);
      expect(credential).toMatch(new RegExp(`^pp_${kind}_[0-9A-Za-z]{38}$`));
      expect(parseCredential(credential)).toBe(kind);
      let checksum = 0;
      for (const digit of credential.slice(-6)) checksum = checksum * 62 + base62.indexOf(digit);
      expect(checksum).toBe(crc32(credential.slice(0, -6)));
    }
  });

  test("is never the same twice", () => {
    const credentials = Array.from({ length: 5000 }, () => newCredential("live"));
    expect(new Set(credentials).size).toBe(credentials.length);
  });

  test("draws its characters evenly, without favouring the first eight as a plain remainder would", () => {
    let characters = 0;
    let firstEight = 0;
    for (let round = 0; round < 4000; round++) {
      for (const character of newCredential("svc").slice("pp_svc_".length, -6)) {
        characters++;
        if (base62.indexOf(character) < 8) firstEight++;
      }
    }
    // A remainder would give 40/256 = 0.156; the standard deviation of 128,000 draws is 0.001.
    expect(Math.abs(firstEight / characters - 8 / 62)).toBeLessThan(0.01);
  });
});

describe("a credential", () => {
  test("with any single character changed is invalid", () => {
    for (const kind of kinds) {
      const credential = newCredential(kind);
      for (let position = 0; position < credential.length; position++) {
        for (const character of `${base62}_-. `) {
          if (character === credential[position]) continue;
          const changed = credential.slice(0, position) + character + credential.slice(position + 1);
          expect(parseCredential(changed), changed).toBeNull();
        }
      }
    }
  });

  test("with two neighbours swapped, one left out or one doubled is invalid", () => {
    fc.assert(
      fc.property(fc.constantFrom(...kinds), fc.nat({ max: 44 }), (kind, position) => {
        const credential = newCredential(kind);
        const before = credential.slice(0, position);
        const [one = "", other = ""] = credential.slice(position, position + 2);
        const after = credential.slice(position + 2);
        const typos = [before + other + after, before + one + one + other + after];
        if (one !== other) typos.push(before + other + one + after);
        for (const typo of typos) if (typo !== credential) expect(parseCredential(typo), typo).toBeNull();
      }),
    );
  });

  test.for(["", "pp_live_", "live", "pp_admin_", "\n", "가"])("is not %j", (text) => {
    expect(parseCredential(text)).toBeNull();
  });

  test("is invalid with anything around it", () => {
    const credential = newCredential("test");
    for (const text of [`${credential}\n`, ` ${credential}`, `${credential} `, credential + credential]) {
      expect(parseCredential(text)).toBeNull();
    }
  });

  test("has its SHA-256 as its digest", () => {
    const credential = newCredential("live");
    expect(digestCredential(credential)).toBe(createHash("sha256").update(credential).digest("hex"));
    expect(digestCredential("abc")).toBe("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  });
});

describe("an Authorization header", () => {
  test.for([
    ["Bearer pp_test_abc", "pp_test_abc"],
    ["bearer pp_test_abc", "pp_test_abc"],
    ["BEARER pp_test_abc", "pp_test_abc"],
    ["bEaReR pp_test_abc", "pp_test_abc"],
    ["Bearer   pp_test_abc", "pp_test_abc"],
    ["Bearer YWJj+/-._~==", "YWJj+/-._~=="],
  ] as const)("%j carries %j", ([header, credential]) => {
    expect(bearerCredential(header)).toBe(credential);
  });

  test.for([undefined, "", " ", "\t"])("%j counts as missing", (header) => {
    expect(bearerCredential(header)).toBeUndefined();
  });

  test.for([
    "Bearer",
    "Bearer ",
    "Bearerpp_test_abc",
    "Bearer\tpp_test_abc",
    "Basic pp_test_abc",
    "pp_test_abc",
    "Token pp_test_abc",
    "Bearer pp_test_abc ",
    "Bearer pp_test_abc x",
    "Bearer pp_test_abc, Bearer pp_test_abc",
    "Bearer pp_test_abc;a=b",
    "Bearer pp_test_abc\n",
    " Bearer pp_test_abc",
    "Bearer pp=test",
    "Bearer ｐｐ_test",
    "Bearer \u0000",
  ])("%j is malformed", (header) => {
    expect(bearerCredential(header)).toBeNull();
  });
});
