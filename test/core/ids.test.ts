import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { decodeId, encodeId, type IdPrefix, newId, newIdAt, newRequestId } from "../../src/core/ids.ts";

const prefixes: IdPrefix[] = ["vrf_", "prj_", "key_", "evt_", "whk_", "tok_", "req_"];
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
const uuidV7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

/** The definition, digit by digit: 128 bits as one number in base 32. */
function encodedByArithmetic(uuid: string): string {
  let rest = BigInt(`0x${uuid.replaceAll("-", "")}`);
  let text = "";
  for (let index = 0; index < 26; index++) {
    text = alphabet[Number(rest % 32n)] + text;
    rest /= 32n;
  }
  return text;
}

describe("an identifier", () => {
  test.for([
    ["00000000-0000-0000-0000-000000000000", "00000000000000000000000000"],
    ["00000000-0000-0000-0000-000000000001", "00000000000000000000000001"],
    ["00000000-0000-0000-0000-000000000020", "00000000000000000000000010"],
    ["ffffffff-ffff-ffff-ffff-ffffffffffff", "7zzzzzzzzzzzzzzzzzzzzzzzzz"],
    ["0110c853-1d09-52d8-d73e-1194e95b5f19", "0123456789abcdefghjkmnpqrs"],
    ["01890a5d-ac96-774b-bcce-b302099a8057", "01h455vb4pex5vsknk084sn02q"],
  ] as const)("of %s is as the TypeID specification says", ([uuid, encoded]) => {
    expect(encodeId("vrf_", uuid)).toBe(`vrf_${encoded}`);
    expect(decodeId("vrf_", `vrf_${encoded}`)).toBe(uuid);
  });

  test("decodes to its UUID with every prefix, and is the UUID's number in base 32", () => {
    fc.assert(
      fc.property(fc.constantFrom(...prefixes), fc.uuid(), (prefix, uuid) => {
        const id = encodeId(prefix, uuid);
        expect(id).toBe(prefix + encodedByArithmetic(uuid));
        expect(decodeId(prefix, id)).toBe(uuid);
        expect(encodeId(prefix, uuid.toUpperCase())).toBe(id);
      }),
    );
  });

  test("sorts like its UUID", () => {
    fc.assert(
      fc.property(fc.uuid(), fc.uuid(), (one, other) => {
        expect(encodeId("vrf_", one) < encodeId("vrf_", other)).toBe(one < other);
      }),
    );
  });

  test("has one spelling: any text that decodes is what encoding gives", () => {
    const nearly = fc
      .tuple(fc.uuid(), fc.nat({ max: 29 }), fc.constantFrom(..."0123456789abzilouILOU8ABZ_- \u0000é가"))
      .map(([uuid, position, character]) => {
        const id = encodeId("vrf_", uuid);
        return id.slice(0, position) + character + id.slice(position + 1);
      });
    fc.assert(
      fc.property(fc.oneof(nearly, fc.string()), (text) => {
        const uuid = decodeId("vrf_", text);
        if (uuid !== null) expect(encodeId("vrf_", uuid)).toBe(text);
      }),
      { numRuns: 1000 },
    );
  });

  test.for([
    ["an empty text", ""],
    ["the prefix alone", "vrf_"],
    ["another prefix", "prj_01h455vb4pex5vsknk084sn02q"],
    ["no prefix", "01h455vb4pex5vsknk084sn02q"],
    ["the prefix in upper case", "VRF_01h455vb4pex5vsknk084sn02q"],
    ["upper case", "vrf_01H455VB4PEX5VSKNK084SN02Q"],
    ["a first character above 7", "vrf_81h455vb4pex5vsknk084sn02q"],
    ["one character too few", "vrf_01h455vb4pex5vsknk084sn02"],
    ["one character too many", "vrf_01h455vb4pex5vsknk084sn02q0"],
    ["i, which Crockford's decoders take for 1", "vrf_0ih455vb4pex5vsknk084sn02q"],
    ["o, which Crockford's decoders take for 0", "vrf_o1h455vb4pex5vsknk084sn02q"],
    ["a hyphen", "vrf_01h455vb4pex5-sknk084sn02q"],
    ["NUL", "vrf_01h455vb4pex5\u0000sknk084sn02q"],
    ["a full-width digit", "vrf_０1h455vb4pex5vsknk084sn02q"],
    ["a space after it", "vrf_01h455vb4pex5vsknk084sn02 "],
    ["a UUID", "01890a5d-ac96-774b-bcce-b302099a8057"],
  ] as const)("is not decoded from %s", ([, text]) => {
    expect(decodeId("vrf_", text)).toBeNull();
  });

  test.for([
    "",
    "01890a5d-ac96-774b-bcce-b302099a805",
    "01890a5d-ac96-774b-bcce-b302099a80570",
    "가",
    "01890a5g-ac96-774b-bcce-b302099a8057",
  ])("cannot be encoded from %j, which is no UUID", (text) => {
    expect(() => encodeId("vrf_", text)).toThrow(RangeError);
  });
});

test("new ids are distinct UUIDv7 of the current millisecond", () => {
  const before = Date.now();
  const ids = Array.from({ length: 10_000 }, newId);
  const after = Date.now();
  expect(new Set(ids).size).toBe(ids.length);
  for (const id of ids) {
    expect(id).toMatch(uuidV7);
    const milliseconds = Number.parseInt(id.replaceAll("-", "").slice(0, 12), 16);
    expect(milliseconds).toBeGreaterThanOrEqual(before);
    expect(milliseconds).toBeLessThanOrEqual(after);
  }
});

test("a new request id decodes to a UUIDv7", () => {
  expect(decodeId("req_", newRequestId())).toMatch(uuidV7);
});

test("an id created for a given time begins with it, and is a UUIDv7 like others", () => {
  fc.assert(
    fc.property(fc.nat({ max: 2 ** 48 - 1 }), (time) => {
      const [one, other] = [newIdAt(time), newIdAt(time)];
      expect(one).toMatch(uuidV7);
      expect(Number.parseInt(one.slice(0, 8) + one.slice(9, 13), 16)).toBe(time);
      expect(other.slice(0, 14)).toBe(one.slice(0, 14));
      expect(other).not.toBe(one);
    }),
  );
});
