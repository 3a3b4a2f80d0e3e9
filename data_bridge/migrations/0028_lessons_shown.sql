-- Which lessons a decision was shown is read from its prompt, by their text.
CREATE INDEX lessons_by_text ON hindsight.lessons (game, md5(title || ': ' || content));
