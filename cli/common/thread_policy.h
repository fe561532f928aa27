/* How the program's threads wait for each other. */
#ifndef CLI_COMMON_THREAD_POLICY_H
#define CLI_COMMON_THREAD_POLICY_H

/* Stores the arguments of the program for a restart; called first. */
void cli_remember_call(char **argv);

/* Threads that spin while they wait are the fastest on a free machine and ruinous on a busy one,
 * where the spinner holds the core that the awaited thread needs: on two cores with a load of 12, a
 * step of the preset burgers took 0.97 s with spinning threads and 0.32 s with passive ones.
 * OpenMP's run time reads its policy from the environment when it is loaded, and has no call for
 * it; so on a busy machine the program starts itself again with passive waiting. Does nothing if
 * the user set a policy (OMP_WAIT_POLICY, GOMP_SPINCOUNT), and returns if the load is not
 * known or the restart fails. */
void cli_choose_waiting(void);

#endif
