/* daemon/spool/step.h: a mark behind every durable step.
 *
 * Nothing in the product. A test build defines TT_TEST_STEPS and brings tt_step, which ends the process with
 * SIGKILL at the step that the test asks for (tests/fault). docs/SPOOL.md names the steps.
 */
#ifndef TT_DAEMON_SPOOL_STEP_H
#define TT_DAEMON_SPOOL_STEP_H

#ifdef TT_TEST_STEPS
void tt_step(const char *name);
#define TT_STEP(name) tt_step(name)
#else
#define TT_STEP(name) ((void)0)
#endif

#endif
