-- Never in a version. In a transaction of its own: creations lock codes and verifications in either order, and whoever has locked
-- both tables so makes them wait for each other.
ALTER TABLE "verification" DROP COLUMN "window_digest";
