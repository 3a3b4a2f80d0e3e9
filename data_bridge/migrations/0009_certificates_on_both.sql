-- Own windows are examined besides the simulated ones, never instead of them.
ALTER TABLE hindsight.certificates DROP CONSTRAINT certificates_material_check;
ALTER TABLE hindsight.certificates ADD CONSTRAINT certificates_material_check
    CHECK (material IN ('simulated', 'windows', 'simulated and windows'));
