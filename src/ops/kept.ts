/** Puts a value into a map and answers it: `map.get(key) ?? kept(map, key, made())`. */
export function kept<Key, Value>(map: Map<Key, Value>, key: Key, value: Value): Value {
  map.set(key, value);
  return value;
}
