-- The role in which an agent earned a reward, as its row said when it was trained: rewards are looked at by role.
ALTER TABLE hindsight.batch_trajectories ADD COLUMN role text;
CREATE INDEX rewards_by_agent ON hindsight.batch_trajectories (agent_id);
CREATE INDEX rewards_by_role ON hindsight.batch_trajectories (model, role) WHERE role IS NOT NULL;
COMMENT ON COLUMN hindsight.batch_trajectories.role IS 'Null: the row named none, or was trained before 0027.';
